"""FlashInfer's two paged wrappers as its documentation describes them, computed in fp32 with plain PyTorch.

They see only what the real ones see: the arrays of ``plan``, the queries and the pages. A captured wrapper reads the
buffers that it was given, not the arrays.
"""

from typing import Any

import torch


class _Wrapper:
    def __init__(self, workspace: torch.Tensor, layout: str) -> None:
        assert layout == "NHD"
        assert workspace.dtype is torch.uint8
        self._planned: dict[str, Any] | None = None

    def _attend(
        self, query: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor], out: torch.Tensor | None
    ) -> torch.Tensor:
        plan = self._planned
        assert plan is not None, "run before plan"
        assert query.dtype is plan["kind"]
        keys, values = cache
        assert keys.shape[1:] == (plan["page"], plan["kv_heads"], plan["head_dim"])
        result = torch.empty_like(query) if out is None else out
        begins, starts = plan["begins"].tolist(), plan["starts"].tolist()
        for row, last in enumerate(plan["last"].tolist()):
            assert 1 <= last <= plan["page"]
            pages = plan["pages"][starts[row] : starts[row + 1]].long()
            length = (len(pages) - 1) * plan["page"] + last
            mine = slice(begins[row], begins[row + 1])
            key, value = (cached[pages].flatten(0, 1)[:length].transpose(0, 1).float() for cached in (keys, values))
            asked = query[mine].transpose(0, 1).float()
            places = torch.arange(length)
            mask = places <= places[length - asked.shape[1] :, None]
            mixed = torch.nn.functional.scaled_dot_product_attention(
                asked[None], key[None], value[None], attn_mask=mask, scale=plan["scale"], enable_gqa=True
            )
            result[mine] = mixed[0].transpose(0, 1).to(result.dtype)
        return result


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    def plan(
        self,
        qo_indptr: torch.Tensor, paged_kv_indptr: torch.Tensor, paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor, num_qo_heads: int, num_kv_heads: int, head_dim_qk: int, page_size: int,
        *, causal: bool, sm_scale: float, q_data_type: torch.dtype, kv_data_type: torch.dtype,
    ) -> None:  # fmt: skip
        arrays = (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        assert all(array.dtype is torch.int32 for array in arrays)
        assert causal
        assert q_data_type is kv_data_type
        assert num_qo_heads % num_kv_heads == 0
        self._planned = {
            "begins": qo_indptr, "starts": paged_kv_indptr, "pages": paged_kv_indices, "last": paged_kv_last_page_len,
            "kv_heads": num_kv_heads, "head_dim": head_dim_qk, "page": page_size, "scale": sm_scale,
            "kind": q_data_type,
        }  # fmt: skip

    def run(
        self, q: torch.Tensor, paged_kv_cache: tuple[torch.Tensor, torch.Tensor], out: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self._attend(q, paged_kv_cache, out)


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    def __init__(
        self, workspace: torch.Tensor, layout: str, use_cuda_graph: bool = False, use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: torch.Tensor | None = None, paged_kv_indices_buffer: torch.Tensor | None = None,
        paged_kv_last_page_len_buffer: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        super().__init__(workspace, layout)
        assert isinstance(use_tensor_cores, bool)
        buffers = (paged_kv_indptr_buffer, paged_kv_indices_buffer, paged_kv_last_page_len_buffer)
        assert all((buffer is not None) == use_cuda_graph for buffer in buffers)
        self._buffers = [buffer for buffer in buffers if buffer is not None]

    def plan(
        self,
        indptr: torch.Tensor, indices: torch.Tensor, last_page_len: torch.Tensor,
        num_qo_heads: int, num_kv_heads: int, head_dim: int, page_size: int,
        *, sm_scale: float, q_data_type: torch.dtype, kv_data_type: torch.dtype,
    ) -> None:  # fmt: skip
        arrays = [indptr, indices, last_page_len]
        assert all(array.dtype is torch.int32 for array in arrays)
        assert q_data_type is kv_data_type
        assert num_qo_heads % num_kv_heads == 0
        if self._buffers:
            assert len(indptr) == len(self._buffers[0]), "the batch size of a captured wrapper is fixed"
            assert len(indices) <= len(self._buffers[1])
            for buffer, array in zip(self._buffers, arrays, strict=True):
                buffer[: len(array)].copy_(array)
            arrays = self._buffers
        self._planned = {
            "begins": torch.arange(len(last_page_len) + 1), "starts": arrays[0], "pages": arrays[1], "last": arrays[2],
            "kv_heads": num_kv_heads, "head_dim": head_dim, "page": page_size, "scale": sm_scale, "kind": q_data_type,
        }  # fmt: skip

    def run(
        self, q: torch.Tensor, paged_kv_cache: tuple[torch.Tensor, torch.Tensor], out: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self._attend(q, paged_kv_cache, out)
