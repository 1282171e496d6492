;; The one function that takes the time: products of a weight matrix with the states of several tokens.
;;
;;   results[t * out + r] = sum over i < in of weights[r * stride + i] * states[t * in + i]      for t < tokens, r < out
;;
;; All places are in bytes, all sizes in numbers of float32; in and out are multiples of 4. Four rows of the matrix are
;; taken at once, so that each state is loaded once for four products, and they rest in the cache for all tokens.
(module
  (import "kernel" "memory" (memory 1))
  (func (export "multiply")
    (param $weights i32) (param $stride i32) (param $states i32) (param $results i32)
    (param $tokens i32) (param $in i32) (param $out i32)
    (local $row i32) (local $token i32) (local $bytes i32)
    (local $a i32) (local $b i32) (local $c i32) (local $d i32)       ;; the four rows
    (local $state i32) (local $i i32) (local $x v128)
    (local $sum_a v128) (local $sum_b v128) (local $sum_c v128) (local $sum_d v128)
    (local.set $stride (i32.shl (local.get $stride) (i32.const 2)))
    (local.set $bytes (i32.shl (local.get $in) (i32.const 2)))
    (local.set $a (local.get $weights))
    (loop $rows
      (local.set $b (i32.add (local.get $a) (local.get $stride)))
      (local.set $c (i32.add (local.get $b) (local.get $stride)))
      (local.set $d (i32.add (local.get $c) (local.get $stride)))
      (local.set $token (i32.const 0))
      (local.set $state (local.get $states))
      (loop $each_token
        (local.set $sum_a (v128.const f32x4 0 0 0 0))
        (local.set $sum_b (v128.const f32x4 0 0 0 0))
        (local.set $sum_c (v128.const f32x4 0 0 0 0))
        (local.set $sum_d (v128.const f32x4 0 0 0 0))
        (local.set $i (i32.const 0))
        (loop $dot
          (local.set $x (v128.load (i32.add (local.get $state) (local.get $i))))
          (local.set $sum_a (f32x4.add (local.get $sum_a) (f32x4.mul (local.get $x) (v128.load (i32.add (local.get $a) (local.get $i))))))
          (local.set $sum_b (f32x4.add (local.get $sum_b) (f32x4.mul (local.get $x) (v128.load (i32.add (local.get $b) (local.get $i))))))
          (local.set $sum_c (f32x4.add (local.get $sum_c) (f32x4.mul (local.get $x) (v128.load (i32.add (local.get $c) (local.get $i))))))
          (local.set $sum_d (f32x4.add (local.get $sum_d) (f32x4.mul (local.get $x) (v128.load (i32.add (local.get $d) (local.get $i))))))
          (br_if $dot (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 16))) (local.get $bytes))))
        ;; the four sums, each over its four lanes, side by side: pairs of lanes first
        (local.set $x
          (f32x4.add
            (i8x16.shuffle 0 1 2 3 16 17 18 19 8 9 10 11 24 25 26 27 (local.get $sum_a) (local.get $sum_b))
            (i8x16.shuffle 4 5 6 7 20 21 22 23 12 13 14 15 28 29 30 31 (local.get $sum_a) (local.get $sum_b))))
        (local.set $sum_c
          (f32x4.add
            (i8x16.shuffle 0 1 2 3 16 17 18 19 8 9 10 11 24 25 26 27 (local.get $sum_c) (local.get $sum_d))
            (i8x16.shuffle 4 5 6 7 20 21 22 23 12 13 14 15 28 29 30 31 (local.get $sum_c) (local.get $sum_d))))
        (v128.store
          (i32.add (local.get $results) (i32.shl (i32.add (i32.mul (local.get $token) (local.get $out)) (local.get $row)) (i32.const 2)))
          (f32x4.add
            (i8x16.shuffle 0 1 2 3 4 5 6 7 16 17 18 19 20 21 22 23 (local.get $x) (local.get $sum_c))
            (i8x16.shuffle 8 9 10 11 12 13 14 15 24 25 26 27 28 29 30 31 (local.get $x) (local.get $sum_c))))
        (local.set $state (i32.add (local.get $state) (local.get $bytes)))
        (br_if $each_token (i32.lt_u (local.tee $token (i32.add (local.get $token) (i32.const 1))) (local.get $tokens))))
      (local.set $a (i32.add (local.get $d) (local.get $stride)))
      (br_if $rows (i32.lt_u (local.tee $row (i32.add (local.get $row) (i32.const 4))) (local.get $out))))))
