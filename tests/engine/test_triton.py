"""The Triton kernel under Triton's interpreter against the gathering reference."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed; it comes with CUDA builds of PyTorch")

CHECK = """
import torch
from gpu_runner.engine.attention.base import PoolShape
from gpu_runner.engine.attention.gather import GatherAttention
from gpu_runner.engine.attention.triton_paged import TritonAttention
from tests.engine.test_attention import batch_of

torch.set_num_threads(1)
for heads, kv_heads, head_dim, block_size in [(4, 4, 32, 16), (6, 2, 16, 8), (4, 1, 48, 12)]:
    shape = PoolShape(1, 24, block_size, heads, kv_heads, head_dim)
    mine, reference = (kind(shape, torch.float32, torch.device("cpu")) for kind in (TritonAttention, GatherAttention))
    tables = [list(range(at, at + 6)) for at in (11, 0, 5)]
    torch.manual_seed(0)
    for rows, last_only in [([(1, 1), (20, 20), (35, 35)], False), ([(1, 2), (1, 21), (9, 44)], False),
                            ([(1, 3), (1, 22), (4, 48)], True)]:
        batch = batch_of(rows, tables, block_size, head_dim)
        tokens = sum(length for length, _ in rows)
        qkv = torch.randn(tokens, heads + 2 * kv_heads, head_dim)
        one, two = torch.zeros(tokens, heads, head_dim), torch.zeros(tokens, heads, head_dim)
        mine.attend(0, qkv.clone(), batch, one, last_only=last_only)
        reference.attend(0, qkv.clone(), batch, two)
        wanted = batch.starts[1:].long() - 1 if last_only else slice(None)
        error = (one[wanted] - two[wanted]).abs().max().item()
        assert error < 5e-6, (heads, rows, error)
    decodes = batch_of([(1, 5), (1, 33), (1, 44)], tables, block_size, head_dim)
    qkv = torch.randn(3, heads + 2 * kv_heads, head_dim)
    one, two = torch.zeros(3, heads, head_dim), torch.zeros(3, heads, head_dim)
    mine.fixed(3, 6).attend(0, qkv.clone(), decodes, one)
    reference.attend(0, qkv.clone(), decodes, two)
    assert (one - two).abs().max().item() < 5e-6, "captured"
print("agrees")
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU script checks the compiled kernel")
def test_the_interpreted_kernel_agrees_with_the_reference() -> None:
    """In a process of its own: the interpreter has to be chosen before the kernel is defined."""
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", CHECK],
        env=environment,
        cwd=root,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "agrees" in done.stdout
