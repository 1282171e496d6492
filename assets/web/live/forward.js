// forward.js: a Llama model (Touvron et al. 2023, arXiv:2302.13971) that reads tokens into its cache and gives logits.
import { makeKernel } from './kernel.js';
import { readNumbers, storedTensors } from './weights.js';
/** @import { Kernel } from './kernel.js' */

const AT_ONCE = 32;                                 // tokens; a longer text is read in pieces
const SIDES = ['hidden_size', 'intermediate_size', 'head_dim'];    // of matrices: multiples of the four numbers that a kernel takes at once
const inFours = (length) => 4 * Math.ceil(length / 4);

/**
 * @typedef {object} Config the part of a model's config.json that is read
 * @property {string} model_type
 * @property {string} hidden_act
 * @property {number} vocab_size
 * @property {number} hidden_size
 * @property {number} intermediate_size
 * @property {number} num_hidden_layers
 * @property {number} num_attention_heads
 * @property {number} num_key_value_heads
 * @property {number} head_dim
 * @property {number} max_position_embeddings
 * @property {number} rms_norm_eps
 * @property {boolean} tie_word_embeddings
 * @property {boolean} attention_bias
 * @property {boolean} mlp_bias
 * @property {{ rope_type: string, rope_theta: number }} rope_parameters
 */

/** @param {Config} config */
function refuseOthers({ model_type, hidden_act, rope_parameters, attention_bias, mlp_bias, ...config }) {
  const rope_type = rope_parameters?.rope_type, bias = attention_bias || mlp_bias;
  if (model_type !== 'llama' || hidden_act !== 'silu' || rope_type !== 'default' || bias) {
    throw new Error(`a model must be a Llama with SiLU, plain rotary positions and no bias (got ${model_type}, ${hidden_act}, ${rope_type}, ${bias ? 'a bias' : 'none'})`);
  }
  for (const side of SIDES) if (!(config[side] > 0 && config[side] % 4 === 0)) throw new Error(`${side} must be a multiple of 4 (got ${config[side]})`);
}

// How many numbers each tensor of a model has.
/** @param {Config} config @returns {Record<string, number>} */
function lengthsOf({ vocab_size: ids, hidden_size: width, intermediate_size: inner, head_dim: size, ...config }) {
  const queries = width * config.num_attention_heads * size, keys = width * config.num_key_value_heads * size;
  const ofLayer = {
    input_layernorm: width, 'self_attn.q_proj': queries, 'self_attn.k_proj': keys, 'self_attn.v_proj': keys, 'self_attn.o_proj': queries,
    post_attention_layernorm: width, 'mlp.gate_proj': inner * width, 'mlp.up_proj': inner * width, 'mlp.down_proj': inner * width,
  };
  const layers = Array.from({ length: config.num_hidden_layers }, (_, layer) => Object.entries(ofLayer).map(([name, length]) => [`model.layers.${layer}.${name}.weight`, length]));
  const around = { 'model.embed_tokens.weight': ids * width, 'model.norm.weight': width, ...(config.tie_word_embeddings ? {} : { 'lm_head.weight': ids * width }) };
  return { ...around, ...Object.fromEntries(layers.flat()) };
}

export class Llama {
  calls = 0;                                        // how often it was asked
  fed = 0;                                          // how many tokens it has read for that
  /** @type {number[]} */
  #read = [];                                       // the tokens whose keys and values are kept

  // files: the bytes of its safetensors files. kernel: what computes; without it, the fastest that this page may use
  /** @param {Config} config @param {Uint8Array[]} files @param {(numbers: number, most: number) => Kernel} [kernel] */
  constructor(config, files, kernel = makeKernel) {
    refuseOthers(config);
    this.config = config;
    this.vocabSize = config.vocab_size;
    this.contextLimit = config.max_position_embeddings;
    const stored = files.flatMap(storedTensors), ofCache = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim;
    const numbers = stored.reduce((sum, { length }) => sum + inFours(length), ofCache * inFours(this.contextLimit));
    const widest = Math.max(config.vocab_size, config.intermediate_size, config.hidden_size, config.num_attention_heads * config.head_dim, inFours(this.contextLimit));
    this.kernel = kernel(numbers, AT_ONCE * widest);
    this.numParameters = stored.reduce((sum, { length }) => sum + length, 0);
    /** @type {Record<string, Float32Array>} */
    this.tensors = Object.fromEntries(stored.map((tensor) => [tensor.name, readNumbers(tensor, this.kernel.room(tensor.length))]));
    for (const [name, length] of Object.entries(lengthsOf(config))) {
      const got = this.tensors[name]?.length ?? 'none';
      if (got !== length) throw new Error(`the weights do not fit config.json: ${name} must have ${length} numbers (got ${got})`);
    }
    this.#makeCache();
    this.#makeAngles();
  }

  // For each layer and head: keys [context, head_dim], and values the other way round [head_dim, context].
  #makeCache() {
    const { num_hidden_layers: layers, num_key_value_heads: heads, head_dim: size } = this.config;
    const rooms = () => Array.from({ length: layers }, () => Array.from({ length: heads }, () => this.kernel.room(size * inFours(this.contextLimit))));
    this.keys = rooms();
    this.values = rooms();
  }

  // Rotary positions (Su et al. 2021, arXiv:2104.09864) in float32 like the models' own code: cosines and sines [context, head_dim / 2].
  #makeAngles() {
    const { head_dim: size, rope_parameters: { rope_theta: theta } } = this.config, half = size / 2;
    this.cosines = new Float32Array(this.contextLimit * half);
    this.sines = new Float32Array(this.contextLimit * half);
    for (let i = 0; i < half; i += 1) {
      const frequency = Math.fround(1 / Math.fround(theta ** (2 * i / size)));
      for (let position = 0; position < this.contextLimit; position += 1) {
        const angle = Math.fround(position * frequency);
        this.cosines[position * half + i] = Math.cos(angle);
        this.sines[position * half + i] = Math.sin(angle);
      }
    }
  }

  // The logits behind each of the last `wanted` tokens, at most 32. Only tokens that the cache lacks are read.
  /** @param {number[]} tokens @param {number} wanted @returns {Float32Array[]} */
  forward(tokens, wanted = 1) {
    if (wanted > AT_ONCE) throw new Error(`a pass gives at most ${AT_ONCE} rows of logits (got ${wanted})`);
    const most = Math.min(this.#read.length, tokens.length - wanted);
    let common = 0;
    while (common < most && this.#read[common] === tokens[common]) common += 1;
    this.#read.length = common;
    this.calls += 1;
    let states = new Float32Array(0);
    while (this.#read.length < tokens.length) {
      const left = tokens.length - this.#read.length;   // the wanted ones are read together
      const size = left > wanted ? Math.min(AT_ONCE, left - wanted) : wanted;
      states = this.#layers(tokens.slice(this.#read.length, this.#read.length + size));
    }
    return this.#logits(states, wanted);
  }

  #logits(states, wanted) {
    const { vocab_size: size, tie_word_embeddings: isTied } = this.config;
    const head = this.tensors[isTied ? 'model.embed_tokens.weight' : 'lm_head.weight'];
    const last = this.#normalise(states, 'model.norm');
    const logits = this.kernel.multiply(head, last, wanted, { out: size }).slice();
    return Array.from({ length: wanted }, (_, row) => logits.subarray(row * size, (row + 1) * size));
  }

  // The states [n, hidden_size] of n more tokens behind the last layer.
  /** @param {number[]} tokens */
  #layers(tokens) {
    const { hidden_size: width, num_hidden_layers: layers } = this.config, past = this.#read.length;
    const states = new Float32Array(tokens.length * width), embedding = this.tensors['model.embed_tokens.weight'];
    tokens.forEach((token, at) => states.set(embedding.subarray(token * width, (token + 1) * width), at * width));
    for (let layer = 0; layer < layers; layer += 1) {
      this.#attend(states, layer, past, tokens.length);
      this.#think(states, layer, tokens.length);
    }
    this.#read.push(...tokens);
    this.fed += tokens.length;
    return states;
  }

  /** @param {Float32Array} states @param {string} name */
  #normalise(states, name) {
    const { hidden_size: width, rms_norm_eps: epsilon } = this.config, weight = this.tensors[`${name}.weight`];
    const made = new Float32Array(states.length);
    for (let start = 0; start < states.length; start += width) {
      let squares = 0;
      for (let i = 0; i < width; i += 1) squares += states[start + i] ** 2;
      const scale = 1 / Math.sqrt(squares / width + epsilon);
      for (let i = 0; i < width; i += 1) made[start + i] = states[start + i] * scale * weight[i];
    }
    return made;
  }

  /** @param {string} name @param {Float32Array} states @param {number} tokens */
  #project(name, states, tokens) {
    const weights = this.tensors[`${name}.weight`];
    return this.kernel.multiply(weights, states, tokens, { out: weights.length / (states.length / tokens) }).slice();
  }

  #attend(states, layer, past, tokens) {
    const { num_attention_heads: heads, num_key_value_heads: groups, head_dim: size } = this.config;
    const name = `model.layers.${layer}`, input = this.#normalise(states, `${name}.input_layernorm`);
    const queries = this.#project(`${name}.self_attn.q_proj`, input, tokens), keys = this.#project(`${name}.self_attn.k_proj`, input, tokens);
    const values = this.#project(`${name}.self_attn.v_proj`, input, tokens);
    this.#rotate(queries, heads, past);
    this.#rotate(keys, groups, past);
    this.#keep(layer, past, keys, values);
    const seen = new Float32Array(queries.length), asked = new Float32Array(tokens * size);
    for (let head = 0; head < heads; head += 1) {
      const at = (token) => (token * heads + head) * size;
      for (let token = 0; token < tokens; token += 1) asked.set(queries.subarray(at(token), at(token) + size), token * size);
      const answers = this.#look(asked, layer, Math.floor(head * groups / heads), past);
      for (let token = 0; token < tokens; token += 1) seen.set(answers.subarray(token * size, (token + 1) * size), at(token));
    }
    add(states, this.#project(`${name}.self_attn.o_proj`, seen, tokens));
  }

  // Turns each head's vector, its two halves against each other, by the angles of its token's position.
  #rotate(vectors, heads, past) {
    const { head_dim: size } = this.config, half = size / 2;
    for (let start = 0; start < vectors.length; start += size) {
      const angles = (past + Math.floor(start / (heads * size))) * half;
      for (let i = start; i < start + half; i += 1) {
        const cosine = this.cosines[angles + i - start], sine = this.sines[angles + i - start], first = vectors[i], second = vectors[i + half];
        vectors[i] = first * cosine - second * sine;
        vectors[i + half] = second * cosine + first * sine;
      }
    }
  }

  #keep(layer, past, keys, values) {
    const { num_key_value_heads: groups, head_dim: size } = this.config, context = inFours(this.contextLimit);
    for (let start = 0; start < keys.length; start += size) {
      const group = start / size % groups, position = past + Math.floor(start / (groups * size));
      this.keys[layer][group].set(keys.subarray(start, start + size), position * size);
      for (let i = 0; i < size; i += 1) this.values[layer][group][i * context + position] = values[start + i];
    }
  }

  // What one head sees with the queries of tokens behind `past` others [n, head_dim]: the values up to each token, weighted by
  // the softmax of query times key.
  /** @param {Float32Array} queries @param {number} layer @param {number} group @param {number} past */
  #look(queries, layer, group, past) {
    const { head_dim: size } = this.config, tokens = queries.length / size, length = inFours(past + tokens);
    const weights = this.kernel.multiply(this.keys[layer][group], queries, tokens, { out: length }).slice();
    for (let token = 0; token < tokens; token += 1) {
      const own = weights.subarray(token * length, token * length + past + token + 1);
      let most = -Infinity, sum = 0;
      for (let i = 0; i < own.length; i += 1) if (own[i] > most) most = own[i];
      for (let i = 0; i < own.length; i += 1) sum += own[i] = Math.exp((own[i] - most) / Math.sqrt(size));
      for (let i = 0; i < own.length; i += 1) own[i] /= sum;
      weights.fill(0, token * length + own.length, (token + 1) * length);            // what lies behind a token has no part in it
    }
    return this.kernel.multiply(this.values[layer][group], weights, tokens, { out: size, stride: inFours(this.contextLimit) });
  }

  // Two layers between which a third one opens and closes each number (SwiGLU: Shazeer 2020, arXiv:2002.05202).
  #think(states, layer, tokens) {
    const name = `model.layers.${layer}`, input = this.#normalise(states, `${name}.post_attention_layernorm`);
    const gate = this.#project(`${name}.mlp.gate_proj`, input, tokens), up = this.#project(`${name}.mlp.up_proj`, input, tokens);
    for (let i = 0; i < gate.length; i += 1) gate[i] = gate[i] / (1 + Math.exp(-gate[i])) * up[i];
    add(states, this.#project(`${name}.mlp.down_proj`, gate, tokens));
  }
}

/** @param {Float32Array} states @param {Float32Array} more */
function add(states, more) {
  for (let i = 0; i < states.length; i += 1) states[i] += more[i];
}
