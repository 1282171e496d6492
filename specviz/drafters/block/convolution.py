"""DFlash2's local convolutions: within a block, each place sees the places just before its own (vLLM, pull 52816)."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import LlamaConfig

from specviz.decoding.forward.decoder_layers import DecoderLayer
from specviz.decoding.forward.products import Products
from specviz.drafters.eagle.layers import AttentionParts, PlainLayer


class BlockConvolution(nn.Module):
    """A depthwise convolution before a part of a layer, and one behind it.

    Its kernels are learned ones and what a projection of the part's normalised input adds for each group of channels.
    Places before a block's first count as zero.
    """

    def __init__(self, hidden_size: int, kernel_size: int, group_size: int) -> None:
        super().__init__()
        self.group_size = group_size
        num_kernels = 2 * kernel_size * (hidden_size // group_size)
        self.kernel_projection = projection = nn.Linear(hidden_size, num_kernels, bias=False)
        self.base_kernel = nn.Parameter(projection.weight.new_empty(2, kernel_size, hidden_size))

    def kernels(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The kernels [M, taps, H] before and behind a part that reads the normalised rows x [M, H]."""
        _, kernel_size, size = self.base_kernel.shape
        added = self.kernel_projection(x).view(len(x), 2, kernel_size, size // self.group_size)
        kernels = self.base_kernel + added.repeat_interleave(self.group_size, -1)
        return kernels[:, 0], kernels[:, 1]


def convolve(x: Tensor, kernels: Tensor, block_size: int) -> Tensor:
    """Rows [M, H] of whole blocks, each place with `taps` places up to its own. kernels: [M, taps, H]."""
    blocks = x.view(-1, block_size, x.shape[-1])
    out = kernels[:, 0] * x
    for tap in range(1, min(kernels.shape[1], block_size)):
        before = pad(blocks[:, :-tap], (0, 0, tap, 0)).view_as(x)
        out = out + kernels[:, tap] * before
    return out


class ConvolvedLayer(PlainLayer):
    """The weights of a decoder layer of DFlash2."""

    def __init__(
        self,
        config: LlamaConfig,
        parts: AttentionParts,
        block_size: int,
        kernel_size: int,
        group_size: int,
    ) -> None:
        super().__init__(config, parts)
        self.block_size = block_size
        self.attention_conv = BlockConvolution(config.hidden_size, kernel_size, group_size)
        self.mlp_conv = BlockConvolution(config.hidden_size, kernel_size, group_size)

    def decoder_layer(self, index: int, kind: str, product: Products) -> DecoderLayer:
        layer = super().decoder_layer(index, kind, product)
        of_attention = _Around(layer.attention_norm, self.attention_conv, self.block_size)
        of_mlp = _Around(layer.mlp_norm, self.mlp_conv, self.block_size)
        layer.attention_norm, layer.after_attention = of_attention.before, of_attention.behind
        layer.mlp_norm, layer.after_mlp = of_mlp.before, of_mlp.behind
        return layer


class _Around:
    """The norm and the convolution before a part of a layer, and the convolution behind it.

    `before` keeps the kernels that `behind` takes, so both are called in turn.
    """

    def __init__(
        self, norm: Callable[[Tensor], Tensor], convolution: BlockConvolution, block_size: int
    ) -> None:
        self._norm = norm
        self._convolution = convolution
        self._block_size = block_size

    def before(self, x: Tensor) -> Tensor:
        x = self._norm(x)
        kernels, self._behind = self._convolution.kernels(x)
        return convolve(x, kernels, self._block_size)

    def behind(self, x: Tensor) -> Tensor:
        return convolve(x, self._behind, self._block_size)
