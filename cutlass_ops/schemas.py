"""Schemas of every registered op, ``torch.ops.cutlass_ops.*``.

They are defined here, in Python, and not by the binary: so the ops, their fakes and their plain
PyTorch implementation exist where no binary was built, and the binary only adds kernels to them.
Everything is positional, because an autocast rule cannot pass keyword arguments on.
"""

from __future__ import annotations

import torch

LIBRARY = torch.library.Library("cutlass_ops", "DEF")

# What functional.py calls. Each has a fake, an autocast rule, a vmap rule, a CUDA implementation
# (dispatch.py) and, for every other backend, the plain PyTorch one (reference.py). ``pairs`` are
# the fp16 halves of the weight, which a pack holds; where there are none a call makes them.
PUBLIC_SCHEMAS = (
    'linear(Tensor x, Tensor weight, Tensor? bias, str precision="ieee") -> Tensor',
    "linear_epilogue(Tensor x, Tensor weight, Tensor? bias, str name, float[] params,"
    ' str precision="ieee") -> Tensor',
    "linear_gelu_softmax(Tensor x, Tensor weight, Tensor? bias, str approximate, str precision,"
    " Tensor? pairs=None) -> Tensor",
    "linear_gelu_softmax_training(Tensor x, Tensor weight, Tensor? bias, str approximate,"
    " str precision) -> (Tensor, Tensor)",
    "linear_avgpool_gelu_scale_max(Tensor x, Tensor weight, Tensor? bias, int kernel_size,"
    " float scale, str approximate, str precision, int folded=1, Tensor? pairs=None) -> Tensor",
    "linear_avgpool_gelu_scale_max_training(Tensor x, Tensor weight, Tensor? bias, int kernel_size,"
    " float scale, str approximate, str precision) -> (Tensor, Tensor, Tensor, Tensor)",
    "winner_gradients(Tensor grad, Tensor winners, Tensor slopes, Tensor x, Tensor weight,"
    " int weight_rows, int kernel_size, bool need_x, bool need_weight, bool need_bias)"
    " -> (Tensor, Tensor, Tensor)",
    "product(Tensor a, bool a_transposed, Tensor b, str precision) -> Tensor",
    "gelu_softmax(Tensor z, Tensor? bias, str approximate) -> Tensor",
    "gelu_scale_max(Tensor z, Tensor? bias, float scale, str approximate) -> Tensor",
    "softmax(Tensor z) -> Tensor",
    "gelu_softmax_backward(Tensor g, Tensor z, Tensor? bias, Tensor y, str approximate,"
    " bool need_bias) -> (Tensor, Tensor)",
    "fold_rows(Tensor weight, int kernel_size) -> Tensor",
)

# What the binary implements for CUDA. They work on 2-D float32 operands with unit column stride
# and any row stride, write to memory that the caller allocated, and are never traced. Of a plan
# they take the choice, ``kernel`` and ``splits``. ``pairs`` are what _split_rows made of the
# weight, float32 memory of _fp16_pairs_elements: None in the mode "ieee", and where nobody made
# them. _split_rows, and _linear_epilogue in a kernel on halves that are made before it, also take
# transposed operands. _row_argmax, a part of _linear_winners, is for tests.
NATIVE_SCHEMAS = (
    "_linear_epilogue(Tensor x, Tensor weight, Tensor? bias, str name, float[] params, int kernel,"
    " int splits, Tensor(a!) workspace, Tensor(b!) out, Tensor? pairs=None) -> ()",
    "_linear_softmax(Tensor x, Tensor weight, Tensor? bias, int kernel, int splits,"
    " Tensor(a!) workspace, str activation, Tensor(b!)? z, Tensor(c!) out, Tensor? pairs=None)"
    " -> ()",
    "_matrix_epilogue(Tensor z, Tensor? bias, str name, float[] params, Tensor(a!) workspace,"
    " Tensor(b!) out) -> ()",
    "_row_softmax(Tensor z, Tensor? bias, str activation, Tensor(a!) out) -> ()",
    "_row_gradient(Tensor g, Tensor y, Tensor z, Tensor? bias, str activation, Tensor(a!) dz,"
    " Tensor(b!)? sums) -> ()",
    "_fold_rows(Tensor weight, Tensor? bias, int kernel_size, Tensor(a!) out,"
    " Tensor(b!)? bias_out) -> ()",
    "_refine_nonfinite(Tensor x, Tensor weight, Tensor? bias, str name, float[] params,"
    " Tensor(a!) out) -> ()",
    "_folded_epilogue(Tensor x, Tensor weight, Tensor? bias, str name, float[] params, int kernel,"
    " int splits, Tensor(a!) memory, Tensor(b!) out) -> ()",
    "_split_rows(Tensor weight, int kernel_size, Tensor(a!) pairs) -> ()",
    "_linear_winners(Tensor x, Tensor weight, Tensor? bias, int kernel_size, str activation,"
    " float scale, int kernel, int splits, Tensor(a!) memory, Tensor(b!)? folded,"
    " Tensor(c!) values, Tensor(d!) winners, Tensor(e!) slopes) -> ()",
    "_row_argmax(Tensor h, str activation, float scale, Tensor(a!) values, Tensor(b!) winners,"
    " Tensor(c!) slopes) -> ()",
    "_winner_gradients(Tensor grad, Tensor winners, Tensor slopes, Tensor x, Tensor weight,"
    " int kernel_size, Tensor(a!) memory, Tensor(b!)? grad_x,"
    " Tensor(c!)? grad_weight, Tensor(d!)? grad_bias) -> ()",
    "_product_memory(Tensor a, bool a_transposed, Tensor b) -> int",
    "_product(Tensor a, bool a_transposed, Tensor b, Tensor(a!) memory, Tensor(b!) out) -> ()",
)

# Questions to the binary that need no GPU. A plan and a GPU are lists of numbers: plans.Plan
# and plans.Gpu name them. ``fp16x3``: tensor-core kernels are candidates too; ``packed``: the
# halves of the weight exist, else the workspace has room for them; ``x_aligned``:
# operands.tma_rows(x).
QUERY_SCHEMAS = (
    "_plan(str name, float[] params, int m, int n, int k, int[] gpu, int folded=1,"
    " bool fp16x3=False, bool packed=False, bool x_aligned=True) -> int[]",
    "_plan_for(str name, float[] params, int m, int n, int k, int[] gpu, str kernel,"
    " int splits, bool packed=False) -> int[]",
    "_describe_plan(int[] plan) -> str",
    "_folded_memory(int windows, int k, int kernel, int workspace) -> int",
    "_winner_memory(int rows, int windows, int workspace) -> int",
    "_winner_gradient_memory(int rows, int columns) -> int",
    "_fp16_pairs_elements(int rows, int k) -> int",
    "_matrix_workspace(str name, float[] params, int m, int n) -> int",
    "_row_gradient_groups(int m, int n) -> int",
    "_choose_folding(int m, int n, int k, int kernel_size, int[] gpu, bool fp16x3=False,"
    " bool x_aligned=True) -> bool",
    "_cuda_versions() -> int[]",
    "_build_info() -> str",
)

for _schema in PUBLIC_SCHEMAS:
    LIBRARY.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))
for _schema in NATIVE_SCHEMAS + QUERY_SCHEMAS:
    LIBRARY.define(_schema)

# Whoever takes the ops from here has them defined.
OPS = torch.ops.cutlass_ops
