// The forward of Llama and its kin over a few rows, and the product of a few rows with a matrix, for `quick.py`.
//
// It reads the model's own weights where they lie. Sums are float32, whatever the format of the weights. Vectors are
// those that GCC and Clang have on every processor, so one source serves AVX2, AVX-512 and ARM. Only products of
// bfloat16 take an instruction of x86's own, where the processor has it: 9 or 17 rows take a quarter less time with it.
// Threads come from the OpenMP library that torch has loaded: its three functions are declared here, and no compiler
// flag is needed.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <thread>
#include <type_traits>
#include <utility>
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

extern "C" {
void GOMP_parallel(void (*work)(void*), void* data, unsigned num_threads, unsigned flags);
int omp_get_thread_num();
int omp_get_num_threads();

struct Linear {
  const void* weight;  // [out, in]
  const void* bias;    // [out], or null
};

struct Layer {
  Linear q, k, v, o, gate, up, down;
  const void* attention_norm;
  const void* q_norm;  // per head, or null like its two neighbours
  const void* k_norm;
  const void* after_attention;
  const void* mlp_norm;
  const void* after_mlp;  // or null
  int64_t index;          // of its stored rows
  int64_t kind;           // of its attention: which mask and rotation
  float scale;
};

struct Model {
  const Layer* layers;
  const void* norm;
  Linear head;
  int64_t num_layers;
  int64_t num_stored;  // layers in the store of rows
  int64_t hidden;
  int64_t read_width;  // of what the attention of the first layer reads, where a text gives it
  int64_t inner;
  int64_t heads;
  int64_t key_heads;
  int64_t width;  // of a head
  int64_t vocab;
  int64_t is_bfloat16;
  int64_t is_gelu;
  float epsilon;
  float norm_offset;  // added to the weights of all norms
};

struct Text {
  void* rows;                    // keys and values [2, layers, key heads, room, width]
  const void* const* cosines;    // [room, width] per kind
  const void* const* sines;      // the same; the first half is negated
  const float* const* masks;     // [n, past + n] per kind; null: a chain that sees everything
  const int64_t* positions;      // [n], or null: they count on from `past`
  const float* inputs;           // [n, read_width] of the first layer's attention, or null: the rows, normalised
  int64_t room;
  int64_t past;        // rows before the new ones
  int64_t num_new;     // n
  int64_t num_logits;  // the last rows that are answered
};
}

namespace {

#if defined(__AVX512F__)
constexpr int BYTES = 64, TOKENS = 6;  // tokens whose sums fit into the registers, times ROWS
#elif defined(__AVX__)
constexpr int BYTES = 32, TOKENS = 3;
#elif defined(__aarch64__)
constexpr int BYTES = 16, TOKENS = 6;
#else
constexpr int BYTES = 16, TOKENS = 3;
#endif
constexpr int LANES = BYTES / 4;
constexpr int ROWS = 4;
constexpr int AHEAD = 8192;  // bytes of a matrix that are fetched before they are needed

typedef float Floats __attribute__((vector_size(BYTES)));
typedef int32_t Ints __attribute__((vector_size(BYTES)));
typedef uint32_t Words __attribute__((vector_size(BYTES)));
typedef uint16_t Halves __attribute__((vector_size(BYTES / 2)));
typedef uint16_t bfloat16;

template <class V>
inline V vector_at(const void* from) {
  V out;
  memcpy(&out, from, sizeof out);
  return out;
}

inline Floats load(const float* from) { return vector_at<Floats>(from); }

inline Floats load(const bfloat16* from) {
  return (Floats)(__builtin_convertvector(vector_at<Halves>(from), Words) << 16);
}

inline void store(float* to, Floats values) { memcpy(to, &values, sizeof values); }

inline float wide(float value) { return value; }

inline float wide(bfloat16 value) {
  uint32_t bits = uint32_t(value) << 16;
  float out;
  memcpy(&out, &bits, sizeof out);
  return out;
}

inline void put(float* to, float value) { *to = value; }

inline void put(bfloat16* to, float value) {  // rounds to the nearest, ties to even
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  *to = value == value ? (bits + 0x7fff + ((bits >> 16) & 1)) >> 16 : 0x7fc0;
}

inline Floats all(float value) { return Floats{} + value; }

// ---- sums of vectors: 16 of them into one, in a tree -----------------------------------------------------------------

struct Two {
  Floats even, odd;
};

template <int S, int... I>
inline Two alternate(Floats a, Floats b, std::integer_sequence<int, I...>) {
  // The lanes of a and b, side by side, taken apart: the even groups of S lanes, and the odd ones.
#if defined(__clang__)
  return {__builtin_shufflevector(a, b, (I / S * 2 * S + I % S)...),
          __builtin_shufflevector(a, b, (I / S * 2 * S + I % S + S)...)};
#else
  return {__builtin_shuffle(a, b, Ints{(I / S * 2 * S + I % S)...}),
          __builtin_shuffle(a, b, Ints{(I / S * 2 * S + I % S + S)...})};
#endif
}

template <int COUNT>
inline Floats totals(const Floats* sums, int num_sums) {
  // Lane i is the total of the i-th vector, COUNT of them; those behind the first num_sums are 0.
  constexpr int HALF = COUNT / 2;
  if (num_sums <= 0) return Floats{};
  if constexpr (COUNT == 1) return sums[0];
  else {
    Floats a = totals<HALF>(sums, num_sums), b = totals<HALF>(sums + HALF, num_sums - HALF);
    auto [even, odd] = alternate<LANES / COUNT>(a, b, std::make_integer_sequence<int, LANES>());
    return even + odd;
  }
}

inline float total(Floats sum) {
  return totals<LANES>(&sum, 1)[0];
}

// ---- products ----------------------------------------------------------------------------------------------------------

// Products take two vectors of numbers of a row at once. Of bfloat16 two numbers lie in one word: either its low half and
// its high half become a vector each, of the even and of the odd places, or one instruction takes the words as they are.
// `arrange` brings what they are multiplied with into the same form, in place: nothing moves farther than two vectors.

inline void add_product(Floats& sum, Floats a, Floats b) { sum += a * b; }

template <class W>
struct Parts {  // of two vectors of numbers
  typedef Floats Part;
  static constexpr int COUNT = 2;

  static Part of(const W* from, int number) { return load(from + number * LANES); }
  static void arrange(float*) {}
};

#if defined(__AVX512BF16__)
inline void add_product(Floats& sum, Words a, Words b) {
  sum = (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}

template <>
struct Parts<bfloat16> {
  typedef Words Part;
  static constexpr int COUNT = 1;

  static Part of(const bfloat16* from, int) { return vector_at<Words>(from); }
  static void arrange(float* x) {
    auto words = (Words)_mm512_cvtne2ps_pbh((__m512)load(x + LANES), (__m512)load(x));
    memcpy(x, &words, sizeof words);
  }
};
#else
template <>
struct Parts<bfloat16> {
  typedef Floats Part;
  static constexpr int COUNT = 2;

  static Part of(const bfloat16* from, int number) {
    Words words = vector_at<Words>(from);
    return (Floats)(number ? words & 0xffff0000u : words << 16);
  }
  static void arrange(float* x) {
    auto [even, odd] = alternate<1>(load(x), load(x + LANES), std::make_integer_sequence<int, LANES>());
    store(x, even);
    store(x + LANES, odd);
  }
};
#endif

template <class W>
void arrange(float* x, int64_t size) {
  for (int64_t i = 0; i < size; i += 2 * LANES) Parts<W>::arrange(x + i);
}

struct Rows {
  float* values;  // [n, stride]
  int64_t stride;

  float* operator[](int64_t row) const { return values + row * stride; }
  Rows from(int64_t row) const { return {(*this)[row], stride}; }
  Rows at(int64_t column) const { return {values + column, stride}; }
};

template <class W, int R, int N = TOKENS>
inline void block(const W* weights, const W* bias, int64_t width, Rows x, int n, Rows y, bool adds) {
  // The products of R rows of a matrix with n rows of x, at most N.
  if (n < N) {
    if constexpr (N > 1) block<W, R, N - 1>(weights, bias, width, x, n, y, adds);
    return;
  }
  constexpr int COUNT = (N * R + LANES - 1) / LANES * LANES;
  Floats sums[COUNT] = {};
  typedef typename Parts<W>::Part Part;
  for (int64_t i = 0; i < width; i += 2 * LANES)
    for (int number = 0; number < Parts<W>::COUNT; number++) {
      Part parts[R];
      for (int k = 0; k < R; k++) {
        const W* from = weights + k * width + i;
        parts[k] = Parts<W>::of(from, number);
        if (sizeof(W) == sizeof(float) || number == 0) __builtin_prefetch((const char*)from + AHEAD + number * BYTES);
      }
      for (int r = 0; r < N; r++) {
        Part values = vector_at<Part>(x[r] + i + number * LANES);
        asm volatile("" ::: "memory");  // GCC would load the values again for each of the R products
        for (int k = 0; k < R; k++) add_product(sums[r * R + k], parts[k], values);
      }
    }
  float out[COUNT];
  for (int k = 0; k < N * R; k += LANES) store(out + k, totals<LANES>(sums + k, N * R - k));
  for (int r = 0; r < N; r++)
    for (int k = 0; k < R; k++) {
      float value = out[r * R + k] + (bias ? wide(bias[k]) : 0.0f);
      y[r][k] = adds ? y[r][k] + value : value;
    }
}

template <class W>
void product(const W* weights, const W* bias, int64_t out, int64_t width, Rows x, int n, Rows y, bool adds = false) {
  // y [n, out] = x [n, width] times the matrix [out, width], transposed, plus the bias; or that much more.
  int num_groups = (n + TOKENS - 1) / TOKENS;
  int64_t row = 0;
  auto pass = [&](auto step) {
    for (; row + step <= out; row += step)
      for (int group = 0; group < num_groups; group++) {
        int begin = int64_t(n) * group / num_groups, end = int64_t(n) * (group + 1) / num_groups;
        block<W, step>(weights + row * width, bias ? bias + row : nullptr, width, x.from(begin), end - begin,
                       y.from(begin).at(row), adds);
      }
  };
  pass(std::integral_constant<int, ROWS>());
  pass(std::integral_constant<int, 1>());
}

// OpenMP's own barrier sleeps at once where several threads of a program have called it: that takes longer than a layer.
class Barrier {
 public:
  void wait(int num_threads) {
    int own = phase.load(std::memory_order_relaxed);
    if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == num_threads) {
      arrived.store(0, std::memory_order_relaxed);
      phase.store(own + 1, std::memory_order_release);
      return;
    }
    for (int tries = 0; phase.load(std::memory_order_acquire) == own; tries++)
      if (tries > PATIENCE) std::this_thread::yield();
  }

 private:
  static constexpr int PATIENCE = 10000;
  std::atomic<int> arrived{0}, phase{0};
};

struct Share {  // of a thread
  int64_t begin, end;
};

inline Share share(int64_t size, int64_t unit, int thread, int num_threads) {
  int64_t num_units = (size + unit - 1) / unit;
  int64_t begin = num_units * thread / num_threads * unit;
  int64_t end = num_units * (thread + 1) / num_threads * unit;
  return {begin, std::min(end, size)};
}

template <class W>
void product_of(const Linear& linear, int64_t width, Rows x, int n, Rows y, Share rows, bool adds = false) {
  // The columns of y that are a thread's share.
  const W* bias = (const W*)linear.bias;
  product((const W*)linear.weight + rows.begin * width, bias ? bias + rows.begin : nullptr, rows.end - rows.begin,
          width, x, n, y.at(rows.begin), adds);
}

// ---- functions of vectors ----------------------------------------------------------------------------------------------

inline Floats exponential(Floats x) {
  // e^x to the last bit or two: 2^n from its own bits, e^rest by its series. 0 far below 0; NaN for every NaN.
  const float MAGIC = 12582912.0f;  // 1.5 * 2^23: what is added to it is rounded to a whole number
  Floats capped = x > 88.0f ? all(88.0f) : x;
  Floats sum = capped * 1.44269504f + MAGIC;
  Floats n = sum - MAGIC;
  Floats rest = capped - n * 0.693359375f + n * 2.12194440e-4f;
  Floats y = all(1.0f / 5040);
  const float SERIES[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
  for (float term : SERIES) y = y * rest + term;
  Floats power = (Floats)(((Ints)sum << 23) + 0x3f800000);
  return x < -87.0f ? Floats{} : y * power;
}

inline Floats activation(Floats x, bool is_gelu) {
  Floats slope = is_gelu ? 1.5957691216f * (x + 0.044715f * x * x * x) : x;  // gelu's tanh, as a logistic function
  return x / (1.0f + exponential(-slope));
}

float scale_of(const float* x, int64_t size, float epsilon) {
  // One over the root of the mean square.
  Floats squares{};
  for (int64_t i = 0; i < size; i += LANES) squares += load(x + i) * load(x + i);
  return 1 / std::sqrt(total(squares) / size + epsilon);
}

template <class W>
void normalise(const float* x, const W* weight, int64_t size, float epsilon, float offset, float* y) {
  float scale = scale_of(x, size, epsilon);
  for (int64_t i = 0; i < size; i += LANES) store(y + i, load(x + i) * scale * (load(weight + i) + offset));
}

// ---- attention ---------------------------------------------------------------------------------------------------------

template <class W, int COLUMNS, int N = TOKENS>
inline void mix(const W* values, int64_t width, int64_t end, Rows shares, int n, Rows out) {
  // COLUMNS vectors of the sums of `end` rows of values, each times its share, for n queries, at most N.
  if (n < N) {
    if constexpr (N > 1) mix<W, COLUMNS, N - 1>(values, width, end, shares, n, out);
    return;
  }
  Floats sums[N][COLUMNS] = {};
  for (int64_t j = 0; j < end; j++, values += width) {
    Floats parts[COLUMNS];
    for (int c = 0; c < COLUMNS; c++) parts[c] = load(values + c * LANES);
    for (int r = 0; r < N; r++)
      for (int c = 0; c < COLUMNS; c++) sums[r][c] += parts[c] * shares[r][j];
  }
  for (int r = 0; r < N; r++)
    for (int c = 0; c < COLUMNS; c++) store(out[r] + c * LANES, sums[r][c]);
}

float as_shares(float* scores, int64_t end) {
  // Turns scores into e^(score - largest) and returns their sum. What lies behind them, up to a whole vector, is 0 then.
  int64_t padded = (end + LANES - 1) / LANES * LANES;
  for (int64_t j = end; j < padded; j++) scores[j] = -INFINITY;
  Floats most = load(scores);
  for (int64_t j = LANES; j < padded; j += LANES) {
    Floats others = load(scores + j);
    most = others > most ? others : most;
  }
  float largest = most[0];
  for (int i = 1; i < LANES; i++) largest = std::max(largest, most[i]);
  Floats sum{};
  for (int64_t j = 0; j < padded; j += LANES) {
    Floats powers = exponential(load(scores + j) - largest);
    store(scores + j, powers);
    sum += powers;
  }
  return total(sum);
}

template <class W>
class Forward {
 public:
  Forward(const Model& model, const Text& text, float* x, float* logits, const int64_t* captured,
          int64_t num_captured, float* states, int num_threads)
      : model(model), text(text), captured(captured), num_captured(num_captured), num_threads(num_threads),
        num_rows(text.num_new), end(text.past + text.num_new), padded((end + LANES - 1) / LANES * LANES),
        x{x, model.hidden}, states{states, num_captured * model.hidden}, logits{logits, model.vocab} {
    int64_t attended = model.heads * model.width;
    int64_t own = num_rows * (normal_size() + model.width + model.inner) + TOKENS * (model.width + padded);
    memory.reset(new float[num_rows * (2 * attended + model.inner + model.hidden) + num_threads * own]);
    float* free = memory.get();
    auto take = [&free](int64_t size) { return std::exchange(free, free + size); };
    queries = take(num_rows * attended);
    mixed = {take(num_rows * attended), attended};
    inner = {take(num_rows * model.inner), model.inner};
    branch = {take(num_rows * model.hidden), model.hidden};
    private_memory = free;
    private_size = own;
  }

  static void run(void* forward) {
    Forward& own = *(Forward*)forward;
    own.work(omp_get_thread_num(), omp_get_num_threads());
  }

  void start() { GOMP_parallel(run, this, num_threads, 0); }

 private:
  const Model& model;
  const Text& text;
  const int64_t* captured;
  int64_t num_captured;
  int num_threads;
  int64_t num_rows, end, padded;  // new rows; all rows; as many as whole vectors hold
  Rows x, states, logits, mixed, inner, branch;
  float* queries;  // [heads, n, width]
  float* private_memory;
  int64_t private_size;
  std::unique_ptr<float[]> memory;
  Barrier barrier;

  struct Own {  // a thread's own memory
    Rows normal;    // [rows, hidden or, for the first layer, read_width]
    Rows head;      // [rows, width]
    Rows few;       // [TOKENS, width]
    float* up;      // [rows, share of inner]
    Rows scores;    // [TOKENS, all rows]
  };

  void work(int thread, int num_threads) {
    float* free = private_memory + thread * private_size;
    auto take = [&free](int64_t size) { return std::exchange(free, free + size); };
    Own own;
    own.normal = {take(num_rows * normal_size()), normal_size()};
    own.head = {take(num_rows * model.width), model.width};
    own.few = {take(TOKENS * model.width), model.width};
    own.up = take(num_rows * model.inner);
    own.scores = {take(TOKENS * padded), padded};
    Share hidden = share(model.hidden, 16, thread, num_threads);
    for (int64_t i = 0; i < model.num_layers; i++) {
      const Layer& layer = model.layers[i];
      if (thread == 0) capture(i);
      int64_t size = prepare_attention(i, own.normal);
      Share heads = share(model.heads + 2 * model.key_heads, 1, thread, num_threads);
      for (int64_t head = heads.begin; head < heads.end; head++) read_head(layer, head, size, own);
      barrier.wait(num_threads);
      attend(layer, share(model.heads * num_rows, 1, thread, num_threads), own);
      barrier.wait(num_threads);
      add(layer.o, layer.after_attention, mixed, hidden, num_threads);
      barrier.wait(num_threads);
      prepare(layer.mlp_norm, own.normal);
      feed(layer, share(model.inner, 2 * LANES, thread, num_threads), own);
      barrier.wait(num_threads);
      add(layer.down, layer.after_mlp, inner, hidden, num_threads);
      barrier.wait(num_threads);
    }
    if (thread == 0) capture(model.num_layers);
    answer(share(model.vocab, 16, thread, num_threads), own);
  }

  void capture(int64_t number) {
    for (int64_t i = 0; i < num_captured; i++)
      if (captured[i] == number)
        for (int64_t r = 0; r < num_rows; r++) memcpy(states.at(i * model.hidden)[r], x[r], model.hidden * sizeof(float));
      else if (captured[i] < 0 && number == model.num_layers)
        normalise_all(model.norm, states.at(i * model.hidden));
  }

  void normalise_all(const void* weight, Rows y) {
    for (int64_t r = 0; r < num_rows; r++)
      normalise(x[r], (const W*)weight, model.hidden, model.epsilon, model.norm_offset, y[r]);
  }

  int64_t normal_size() const { return std::max(model.hidden, text.inputs ? model.read_width : 0); }

  int64_t prepare_attention(int64_t number, Rows y) {
    // What the attention of a layer reads; returns its width.
    if (number || !text.inputs) {
      prepare(model.layers[number].attention_norm, y);
      return model.hidden;
    }
    for (int64_t r = 0; r < num_rows; r++) {
      memcpy(y[r], text.inputs + r * model.read_width, model.read_width * sizeof(float));
      arrange<W>(y[r], model.read_width);
    }
    return model.read_width;
  }

  void prepare(const void* norm, Rows y) {
    normalise_all(norm, y);
    for (int64_t r = 0; r < num_rows; r++) arrange<W>(y[r], model.hidden);
  }

  W* stored(const Layer& layer, int64_t key_head, bool is_values) {
    int64_t place = (layer.index + is_values * model.num_stored) * model.key_heads + key_head;
    return (W*)text.rows + place * text.room * model.width;
  }

  void read_head(const Layer& layer, int64_t head, int64_t size, Own& own) {
    // A head of queries, keys or values from inputs of this size: its product, norm and rotation. Keys and values go to
    // the store.
    int64_t first_key = model.heads, first_value = model.heads + model.key_heads;
    bool is_query = head < first_key, is_value = head >= first_value;
    const Linear& linear = is_query ? layer.q : is_value ? layer.v : layer.k;
    int64_t number = head - (is_query ? 0 : is_value ? first_value : first_key);
    Share rows = {number * model.width, (number + 1) * model.width};
    product_of<W>(linear, size, own.normal, num_rows, own.head.at(-rows.begin), rows);
    const void* norm = is_query ? layer.q_norm : is_value ? nullptr : layer.k_norm;
    for (int64_t r = 0; r < num_rows; r++) {
      float* values = own.head[r];
      if (norm) normalise(values, (const W*)norm, model.width, model.epsilon, model.norm_offset, values);
      W* at = stored(layer, number, is_value) + (text.past + r) * model.width;
      if (is_value)
        for (int64_t i = 0; i < model.width; i++) put(at + i, values[i]);
      else if (!is_query)
        rotate(layer, r, values, at);
      else {
        float* to = queries + (number * num_rows + r) * model.width;
        rotate(layer, r, values, to);
        arrange<W>(to, model.width);
      }
    }
  }

  template <class T>
  void rotate(const Layer& layer, int64_t row, const float* x, T* y) {
    int64_t position = text.positions ? text.positions[row] : text.past + row;
    const W* cosines = (const W*)text.cosines[layer.kind] + position * model.width;
    const W* sines = (const W*)text.sines[layer.kind] + position * model.width;
    int64_t half = model.width / 2;
    for (int64_t i = 0; i < half; i++) {
      put(y + i, x[i] * wide(cosines[i]) + x[i + half] * wide(sines[i]));
      put(y + i + half, x[i + half] * wide(cosines[i + half]) + x[i] * wide(sines[i + half]));
    }
  }

  void attend(const Layer& layer, Share queries, Own& own) {
    // A share of the queries, which lie head by head. Those that share a key head are taken together.
    int64_t per_key = model.heads / model.key_heads * num_rows;
    for (int64_t query = queries.begin; query < queries.end;) {
      int64_t key_head = query / per_key;
      int64_t limit = std::min((key_head + 1) * per_key, queries.end);
      int n = int(std::min<int64_t>(TOKENS, limit - query));
      attend_few(layer, key_head, query, n, own);
      query += n;
    }
  }

  void attend_few(const Layer& layer, int64_t key_head, int64_t query, int n, Own& own) {
    Rows from = {queries + query * model.width, model.width};
    product(stored(layer, key_head, false), (const W*)nullptr, end, model.width, from, n, own.scores);
    float scales[TOKENS];
    for (int i = 0; i < n; i++) {
      int64_t row = (query + i) % num_rows;
      int64_t seen = text.masks ? end : text.past + row + 1;
      float* scores = own.scores[i];
      for (int64_t j = 0; j < end; j++) scores[j] *= layer.scale;
      if (text.masks) {
        const float* mask = text.masks[layer.kind] + row * end;
        for (int64_t j = 0; j < end; j++) scores[j] += mask[j];
      }
      scales[i] = 1 / as_shares(scores, seen);
      for (int64_t j = (seen + LANES - 1) / LANES * LANES; j < end; j++) scores[j] = 0;
    }
    const W* values = stored(layer, key_head, true);
    int64_t column = 0, width = model.width;
    for (; column + 4 * LANES <= width; column += 4 * LANES)
      mix<W, 4>(values + column, width, end, own.scores, n, own.few.at(column));
    for (; column < width; column += 2 * LANES)
      mix<W, 2>(values + column, width, end, own.scores, n, own.few.at(column));
    for (int i = 0; i < n; i++) {
      float* to = mixed[(query + i) % num_rows] + (query + i) / num_rows * width;
      for (int64_t j = 0; j < width; j++) to[j] = own.few[i][j] * scales[i];
      arrange<W>(to, width);
    }
  }

  void feed(const Layer& layer, Share share, Own& own) {
    // A share of the inner layer: up times the activation of gate.
    int64_t size = share.end - share.begin;
    Rows up = {own.up, size};
    product_of<W>(layer.gate, model.hidden, own.normal, num_rows, inner, share);
    product_of<W>(layer.up, model.hidden, own.normal, num_rows, up.at(-share.begin), share);
    for (int64_t r = 0; r < num_rows; r++) {
      float* gate = inner[r] + share.begin;
      for (int64_t i = 0; i < size; i += LANES)
        store(gate + i, activation(load(gate + i), model.is_gelu) * load(up[r] + i));
      arrange<W>(gate, size);
    }
  }

  void add(const Linear& linear, const void* norm, Rows from, Share share, int num_threads) {
    // Adds a share of a branch's columns to x; a branch with a norm must be whole before.
    product_of<W>(linear, from.stride, from, num_rows, norm ? branch : x, share, !norm);
    if (!norm) return;
    barrier.wait(num_threads);
    for (int64_t r = 0; r < num_rows; r++) {
      float scale = scale_of(branch[r], model.hidden, model.epsilon);
      const W* weight = (const W*)norm;
      for (int64_t i = share.begin; i < share.end; i += LANES)
        store(x[r] + i, load(x[r] + i) + load(branch[r] + i) * scale * (load(weight + i) + model.norm_offset));
    }
  }

  void answer(Share share, Own& own) {
    // A share of the logits of the last rows.
    for (int64_t r = 0; r < text.num_logits; r++) {
      const float* last = x[num_rows - text.num_logits + r];
      normalise(last, (const W*)model.norm, model.hidden, model.epsilon, model.norm_offset, own.normal[r]);
      arrange<W>(own.normal[r], model.hidden);
    }
    product_of<W>(model.head, model.hidden, own.normal, text.num_logits, logits, share);
  }
};

template <class W>
struct Product {
  Linear linear;
  int64_t out, width;
  Rows x, y;
  int n;

  static void run(void* product) {
    Product& own = *(Product*)product;
    Share rows = share(own.out, 16, omp_get_thread_num(), omp_get_num_threads());
    product_of<W>(own.linear, own.width, own.x, own.n, own.y, rows);
  }

  void start(const float* from, int num_threads) {
    std::unique_ptr<float[]> memory(new float[n * width]);
    x = {memory.get(), width};
    memcpy(x.values, from, n * width * sizeof(float));
    for (int r = 0; r < n; r++) arrange<W>(x[r], width);
    GOMP_parallel(run, this, num_threads, 0);
  }
};

}  // namespace

extern "C" {

// x [n, hidden]: what the first layer adds to, overwritten. logits [num_logits, vocab]. captured: the numbers of the
// layers whose states [n, num_captured * hidden] are wanted, -1 for those behind the last norm. Returns whether there
// was enough memory.
bool quick_forward(const Model* model, const Text* text, float* x, float* logits, const int64_t* captured,
                   int64_t num_captured, float* states, int num_threads) try {
  if (model->is_bfloat16)
    Forward<bfloat16>(*model, *text, x, logits, captured, num_captured, states, num_threads).start();
  else
    Forward<float>(*model, *text, x, logits, captured, num_captured, states, num_threads).start();
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

// y [n, out] = x [n, in] times weight [out, in], transposed, plus bias [out] or null. Returns what quick_forward does.
bool quick_product(int is_bfloat16, const void* weight, const void* bias, int64_t out, int64_t width, const float* x,
                   int n, float* y, int num_threads) try {
  if (is_bfloat16)
    Product<bfloat16>{{weight, bias}, out, width, {}, {y, out}, n}.start(x, num_threads);
  else
    Product<float>{{weight, bias}, out, width, {}, {y, out}, n}.start(x, num_threads);
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

// The most rows for which this code is faster than torch's, as measured with AVX-512 and AVX2.
int quick_most_rows(bool is_bfloat16) {
  if (BYTES == 64 && !is_bfloat16) return INT32_MAX;
  return (Parts<bfloat16>::COUNT == 1 ? 6 : 4) * TOKENS;
}
}
