"""The contract's counting rules, written down a second time and independently of the C++ sources.

What a rank holds, which collectives it issues, in which order, of which size, dtype and group; padding apart.
Sizes are nccl-tests': all-gather the gathered size, reduce-scatter the whole input, all-reduce the count.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction

BYTES = {"fp32": 4, "bf16": 2}
MIB = 1 << 20


@dataclass(frozen=True)
class Tensor:
    name: str
    rows: int
    row_elements: int
    layer: int

    @property
    def elements(self) -> int:
        return self.rows * self.row_elements


@dataclass(frozen=True)
class Case:
    """One configuration. The dimensions default to ones that few worlds divide."""

    scenario: str = "zero3"
    ranks: int = 1
    layers: int = 2
    hidden: int = 12
    heads: int = 2
    kv_heads: int = 1
    ffn: int = 10
    vocab: int = 11
    seq: int = 4
    tied: bool = False
    accum: int = 1
    micro_batch: int = 1
    param_dtype: str = "bf16"
    reduce_dtype: str = "fp32"
    fp32_grad_accum: bool = False
    clip: float = 0.0
    layout: str = "per-parameter"
    wrap: str = "blocks"
    reshard: str = "all"
    prefetch: tuple[int, int] = (1, 1)
    bucket_mb: int | None = None
    extra: tuple[str, ...] = field(default=())

    def options(self) -> list[str]:
        words = ["--tied" if self.tied else "--untied"]
        for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq", "micro_batch", "param_dtype", "reduce_dtype"):
            words += ["--" + name.replace("_", "-"), str(getattr(self, name))]
        words += ["--grad-accum", str(self.accum), "--clip", str(self.clip), "--threads", "1"]
        words += ["--fp32-grad-accum"] if self.fp32_grad_accum else []
        if self.scenario == "zero3":
            words += ["--layout", self.layout, "--wrap", self.wrap, "--reshard-after-forward", self.reshard,
                      "--prefetch", "{},{}".format(*self.prefetch)]
        elif self.bucket_mb is not None:
            words += ["--bucket-mb", str(self.bucket_mb)]
        return [*words, *self.extra]

    @property
    def last_layer(self) -> int:
        return self.layers + 1

    def tensors(self) -> list[Tensor]:
        """In declaration order."""
        h, kv, f = self.hidden, self.hidden // self.heads * self.kv_heads, self.ffn
        result = [Tensor("embedding", self.vocab, h, 0)]
        for block in range(self.layers):
            shapes = {"norm1": (h, 1), "wq": (h, h), "wk": (kv, h), "wv": (kv, h), "wo": (h, h), "norm2": (h, 1),
                      "w1": (f, h), "w3": (f, h), "w2": (h, f)}
            result += [Tensor(f"{block}.{name}", *shape, block + 1) for name, shape in shapes.items()]
        result.append(Tensor("norm", h, 1, self.last_layer))
        if not self.tied:
            result.append(Tensor("head", self.vocab, h, self.last_layer))
        return result

    @property
    def psi(self) -> int:
        return sum(t.elements for t in self.tensors())

    # --- gather groups of zero3 -------------------------------------------------------------------------------------

    def groups(self) -> dict[int, list[Tensor]]:
        """By the number that `layer` carries for the group's collectives; a root group is 0."""
        result: dict[int, list[Tensor]] = {}
        for tensor in self.tensors():
            joins_root = self.wrap == "root" and tensor.layer == self.last_layer
            result.setdefault(0 if joins_root else tensor.layer, []).append(tensor)
        return result

    def group_of_layer(self, layer: int) -> int:
        return 0 if self.wrap == "root" and layer == self.last_layer else layer

    def gathered(self, group: int) -> int:
        """Elements that the group's collectives move: ceil chunks of dim 0 times N; flat: padded to a multiple of N."""
        tensors = self.groups()[group]
        if self.layout == "flat":
            return -(-sum(t.elements for t in tensors) // self.ranks) * self.ranks
        return sum(-(-t.rows // self.ranks) * self.ranks * t.row_elements for t in tensors)

    def real(self, group: int) -> int:
        return sum(t.elements for t in self.groups()[group])

    def is_kept_after_forward(self, group: int) -> bool:
        if self.wrap == "root" and group == 0:
            return True
        return self.reshard == "none" or (self.reshard == "blocks" and self.wrap == "blocks" and group == self.last_layer)

    def copies_out(self, group: int) -> bool:
        """Whether a gathered group must be rearranged before use."""
        return self.layout == "per-parameter" and self.ranks > 1 and len(self.groups()[group]) > 1

    # --- what a rank holds ------------------------------------------------------------------------------------------

    def held(self, rank: int) -> int:
        """Elements of the model that rest on a rank."""
        if self.scenario == "ddp":
            return self.psi
        if self.layout == "flat":
            result = 0
            for group in self.groups():
                block = self.gathered(group) // self.ranks
                result += max(0, min(block, self.real(group) - rank * block))
            return result
        result = 0
        for t in self.tensors():
            chunk = -(-t.rows // self.ranks)
            result += max(0, min(chunk, t.rows - rank * chunk)) * t.row_elements
        return result

    def bytes_per_element(self) -> dict[str, int]:
        if self.param_dtype == "fp32":
            return {"parameters": 4, "gradients": 4, "optimizer": 8}
        return {"parameters": 2, "gradients": 6 if self.fp32_grad_accum else 2, "optimizer": 12}

    # --- what a rank issues -----------------------------------------------------------------------------------------

    def operations(self) -> list["Operation"]:
        return list(self._ddp() if self.scenario == "ddp" else self._zero3())

    def _zero3(self) -> Iterator["Operation"]:
        for micro in range(self.accum):
            down = range(self.last_layer + 1)
            yield from self._pass("forward", micro, list(down), list(self.groups()), self.prefetch[0])
            needed = [g for g in self.groups() if not self.is_kept_after_forward(g)]
            yield from self._pass("backward", micro, list(reversed(down)), needed, self.prefetch[1])
        yield from self._clipping()

    def _pass(self, phase: str, micro: int, layers: list[int], needed: list[int], ahead: int) -> Iterator["Operation"]:
        """A gather is issued `ahead` layers before the first that needs it, directly before that layer's compute."""
        uses = {g: [i for i, layer in enumerate(layers) if self.group_of_layer(layer) == g] for g in self.groups()}
        here = Operation(phase, micro)
        for position, layer in enumerate(layers):
            for group in sorted(needed, key=lambda g: uses[g][0]):
                if max(0, uses[group][0] - ahead) == position:
                    yield self._of_group(here, "all_gather", group, self.param_dtype)
            yield replace(here, kind="compute", layer=layer)
            if phase == "backward":
                for group in self.groups():
                    if uses[group][-1] == position:
                        yield self._of_group(here, "reduce_scatter", group, self.reduce_dtype)

    def _of_group(self, here: "Operation", kind: str, group: int, dtype: str) -> "Operation":
        return replace(here, kind=kind, layer=group, axis="dp", dtype=dtype, group_size=self.ranks,
                       elements=self.gathered(group), real=self.real(group))

    def _clipping(self) -> Iterator["Operation"]:
        if self.clip:
            yield Operation("optimizer", 0, "all_reduce", -1, -1, "world", "fp32", self.ranks, 1, 1)

    def buckets(self) -> list[list[Tensor]]:
        """Reverse declaration order; a bucket closes when its size reaches the cap. The default's first cap is 1 MiB."""
        cap = (self.bucket_mb or 25) * MIB
        result: list[list[Tensor]] = [[]]
        for tensor in reversed(self.tensors()):
            limit = MIB if len(result) == 1 and self.bucket_mb is None else cap
            if sum(t.elements for t in result[-1]) * BYTES[self.reduce_dtype] >= limit:
                result.append([])
            result[-1].append(tensor)
        return result

    def _ddp(self) -> Iterator["Operation"]:
        for micro in range(self.accum):
            for layer in range(self.last_layer + 1):
                yield Operation("forward", micro, "compute", layer)
            for layer in range(self.last_layer, -1, -1):
                yield Operation("backward", micro, "compute", layer)
                if micro + 1 < self.accum:
                    continue
                for index, bucket in enumerate(self.buckets()):
                    if bucket[-1].layer == layer:
                        size = sum(t.elements for t in bucket)
                        yield Operation("backward", micro, "all_reduce", -1, index, "dp", self.reduce_dtype, self.ranks, size, size)

    # --- the ledger -------------------------------------------------------------------------------------------------

    def ledger(self, rank: int) -> dict[tuple[str, str], tuple[Fraction, Fraction]]:
        """Expected and padding by axis and quantity; measured must be their sum."""
        held, per = self.held(rank), self.bytes_per_element()
        rows: dict[tuple[str, str], tuple[Fraction, Fraction]] = {}
        for category, size in per.items():
            rows["world", f"{category}_bytes"] = (Fraction(size * held), Fraction(0))
        rows["world", "static_bytes"] = (Fraction(sum(per.values()) * held), Fraction(0))

        issued = [o for o in self.operations() if o.kind != "compute"]
        for axis in ("dp", "world"):
            here = [o for o in issued if o.axis == axis]
            if axis == "world" and not here:
                continue
            named = {f"all_gather_{phase}": [o for o in here if (o.kind, o.phase) == ("all_gather", phase)]
                     for phase in ("forward", "backward", "optimizer")}
            named |= {kind: [o for o in here if o.kind == kind] for kind in ("reduce_scatter", "all_reduce")}
            for name, selected in named.items():
                rows[axis, f"{name}_count"] = (Fraction(len(selected)), Fraction(0))
                rows[axis, f"{name}_size"] = (Fraction(sum(o.real for o in selected)),
                                              Fraction(sum(o.elements - o.real for o in selected)))
            for kind in ("all_gather", "reduce_scatter", "all_reduce"):
                rows[axis, f"{kind}_elements"] = _volumes([o for o in here if o.kind == kind], {"fp32": 1, "bf16": 1})
            rows[axis, "volume_elements"] = _volumes(here, {"fp32": 1, "bf16": 1})
            rows[axis, "volume_bytes"] = _volumes(here, BYTES)
        return rows

    def textbook(self) -> dict[tuple[str, str], Fraction]:
        share = Fraction(self.ranks - 1, self.ranks)
        per = sum(self.bytes_per_element().values())
        if self.scenario == "ddp":
            return {("world", "textbook_static_bytes"): Fraction(per * self.psi),
                    ("dp", "textbook_volume_elements"): 2 * self.psi * share}
        return {("world", "textbook_static_bytes"): Fraction(per * self.psi, self.ranks),
                ("dp", "textbook_volume_elements"): 3 * self.accum * self.psi * share}


@dataclass(frozen=True)
class Operation:
    phase: str
    micro: int
    kind: str = "compute"
    layer: int = -1
    bucket: int = -1
    axis: str = "none"
    dtype: str = "none"
    group_size: int = 0
    elements: int = 0
    real: int = 0

    @property
    def bytes(self) -> int:
        return self.elements * BYTES.get(self.dtype, 0)

    def volume(self, elements: int) -> Fraction:
        factor = 2 if self.kind == "all_reduce" else 1
        return Fraction(factor * elements * (self.group_size - 1), self.group_size)


def _volumes(operations: list[Operation], weight: dict[str, int]) -> tuple[Fraction, Fraction]:
    real = sum((o.volume(o.real) * weight[o.dtype] for o in operations), Fraction(0))
    padding = sum((o.volume(o.elements - o.real) * weight[o.dtype] for o in operations), Fraction(0))
    return real, padding
