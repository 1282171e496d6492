;; The one thing that takes the time: products of a weight matrix with the states of tokens.
;;
;;   result[r] = sum over i < in of weights[r * stride + i] * state[i]      for r < out
;;
;; All places are in bytes, all sizes in numbers of float32; in is a multiple of 4. One row is taken after the other: so the
;; matrix is read in the order in which it lies in memory, which is what most of the time goes into.
(module
  (import "kernel" "memory" (memory 1))

  ;; for one token
  (func (export "one")
    (param $weights i32) (param $stride i32) (param $in i32) (param $out i32) (param $state i32) (param $result i32)
    (local $bytes i32) (local $i i32) (local $sum v128)
    (local.set $bytes (i32.shl (local.get $in) (i32.const 2)))
    (loop $rows
      (local.set $sum (v128.const f32x4 0 0 0 0))
      (local.set $i (i32.const 0))
      (loop $dot
        (local.set $sum (f32x4.add (local.get $sum) (f32x4.mul
          (v128.load (i32.add (local.get $weights) (local.get $i))) (v128.load (i32.add (local.get $state) (local.get $i))))))
        (br_if $dot (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 16))) (local.get $bytes))))
      (f32.store (local.get $result) (call $total (local.get $sum)))
      (local.set $result (i32.add (local.get $result) (i32.const 4)))
      (local.set $weights (i32.add (local.get $weights) (i32.shl (local.get $stride) (i32.const 2))))
      (br_if $rows (local.tee $out (i32.sub (local.get $out) (i32.const 1))))))

  ;; for five, of which some may be the same: a row is loaded once for all
  (func (export "five")
    (param $weights i32) (param $stride i32) (param $in i32) (param $out i32)
    (param $state_0 i32) (param $state_1 i32) (param $state_2 i32) (param $state_3 i32) (param $state_4 i32)
    (param $result_0 i32) (param $result_1 i32) (param $result_2 i32) (param $result_3 i32) (param $result_4 i32)
    (local $bytes i32) (local $i i32) (local $at i32) (local $row v128)
    (local $sum_0 v128) (local $sum_1 v128) (local $sum_2 v128) (local $sum_3 v128) (local $sum_4 v128)
    (local.set $bytes (i32.shl (local.get $in) (i32.const 2)))
    (loop $rows
      (local.set $sum_0 (v128.const f32x4 0 0 0 0))
      (local.set $sum_1 (v128.const f32x4 0 0 0 0))
      (local.set $sum_2 (v128.const f32x4 0 0 0 0))
      (local.set $sum_3 (v128.const f32x4 0 0 0 0))
      (local.set $sum_4 (v128.const f32x4 0 0 0 0))
      (local.set $i (i32.const 0))
      (loop $dot
        (local.set $row (v128.load (i32.add (local.get $weights) (local.get $i))))
        (local.set $sum_0 (f32x4.add (local.get $sum_0) (f32x4.mul (local.get $row) (v128.load (i32.add (local.get $state_0) (local.get $i))))))
        (local.set $sum_1 (f32x4.add (local.get $sum_1) (f32x4.mul (local.get $row) (v128.load (i32.add (local.get $state_1) (local.get $i))))))
        (local.set $sum_2 (f32x4.add (local.get $sum_2) (f32x4.mul (local.get $row) (v128.load (i32.add (local.get $state_2) (local.get $i))))))
        (local.set $sum_3 (f32x4.add (local.get $sum_3) (f32x4.mul (local.get $row) (v128.load (i32.add (local.get $state_3) (local.get $i))))))
        (local.set $sum_4 (f32x4.add (local.get $sum_4) (f32x4.mul (local.get $row) (v128.load (i32.add (local.get $state_4) (local.get $i))))))
        (br_if $dot (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 16))) (local.get $bytes))))
      (f32.store (i32.add (local.get $result_0) (local.get $at)) (call $total (local.get $sum_0)))
      (f32.store (i32.add (local.get $result_1) (local.get $at)) (call $total (local.get $sum_1)))
      (f32.store (i32.add (local.get $result_2) (local.get $at)) (call $total (local.get $sum_2)))
      (f32.store (i32.add (local.get $result_3) (local.get $at)) (call $total (local.get $sum_3)))
      (f32.store (i32.add (local.get $result_4) (local.get $at)) (call $total (local.get $sum_4)))
      (local.set $at (i32.add (local.get $at) (i32.const 4)))
      (local.set $weights (i32.add (local.get $weights) (i32.shl (local.get $stride) (i32.const 2))))
      (br_if $rows (local.tee $out (i32.sub (local.get $out) (i32.const 1))))))

  ;; the sum of the four lanes
  (func $total (param $sum v128) (result f32)
    (f32.add
      (f32.add (f32x4.extract_lane 0 (local.get $sum)) (f32x4.extract_lane 1 (local.get $sum)))
      (f32.add (f32x4.extract_lane 2 (local.get $sum)) (f32x4.extract_lane 3 (local.get $sum))))))
