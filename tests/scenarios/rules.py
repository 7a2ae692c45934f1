"""The contract's counting rules, written down a second time and independently of the C++ sources.

What a rank holds, which collectives it issues, in which order, of which size, dtype and group; padding apart.
Sizes are nccl-tests': all-gather the gathered size, reduce-scatter the whole input, all-reduce the count.

Ranks differ: rank = dp_index * tp + tp_index. Where a method has no rank to ask about, rank 0's part of the tensors is
meant, which without tensor parallelism is everybody's.
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

    @property
    def is_norm(self) -> bool:
        return self.name.rpartition(".")[2].startswith("norm")

    def part(self, parts: int, index: int) -> "Tensor":
        """What tensor parallelism leaves: columns of the row-parallel wo and w2, all of a norm, rows of the others."""
        if self.is_norm:
            return self
        if self.name.endswith((".wo", ".w2")):
            return replace(self, row_elements=chunk(self.row_elements, parts, index))
        return replace(self, rows=chunk(self.rows, parts, index))


def chunk(rows: int, parts: int, index: int) -> int:
    """Rows of a ceil chunk; later ones may be short or empty."""
    each = -(-rows // parts)
    return max(0, min(each, rows - index * each))


def overlap(begin: int, end: int, other_begin: int, other_end: int) -> int:
    return max(0, min(end, other_end) - max(begin, other_begin))


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
    param_gather: str = "end"
    recompute: str = "none"
    tp: int = 1
    sequence_parallel: bool = False
    extra: tuple[str, ...] = field(default=())

    def options(self) -> list[str]:
        words = ["--tied" if self.tied else "--untied"]
        for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq", "micro_batch", "param_dtype", "reduce_dtype"):
            words += ["--" + name.replace("_", "-"), str(getattr(self, name))]
        words += ["--grad-accum", str(self.accum), "--clip", str(self.clip), "--recompute", self.recompute]
        words += ["--threads", "1"]
        words += ["--fp32-grad-accum"] if self.fp32_grad_accum else []
        if self.gathers_groups:
            words += ["--layout", self.layout, "--wrap", self.wrap, "--reshard-after-forward", self.reshard,
                      "--prefetch", "{},{}".format(*self.prefetch)]
        elif self.bucket_mb is not None:
            words += ["--bucket-mb", str(self.bucket_mb)]
        if self.gathers_buckets:
            words += ["--param-gather", self.param_gather]
        if self.scenario == "mesh2d":
            words += ["--dp", str(self.dp), "--tp", str(self.tp), *(["--sequence-parallel"] if self.sequence_parallel else [])]
        return [*words, *self.extra]

    @property
    def gathers_groups(self) -> bool:
        return self.scenario in ("zero3", "mesh2d")

    @property
    def gathers_buckets(self) -> bool:
        return self.scenario in ("zero1", "zero2")

    @property
    def dp(self) -> int:
        return self.ranks // self.tp

    @property
    def last_layer(self) -> int:
        return self.layers + 1

    @property
    def tokens(self) -> int:
        """Of a micro-batch."""
        return self.micro_batch * self.seq

    def tensors(self, rank: int = 0) -> list[Tensor]:
        """A rank's parts of the declared tensors, in declaration order."""
        return [tensor.part(self.tp, rank % self.tp) for tensor in self.declared()]

    def declared(self) -> list[Tensor]:
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
        return sum(t.elements for t in self.declared())

    # --- gather groups of zero3 and mesh2d ------------------------------------------------------------------------

    def groups(self, rank: int = 0) -> dict[int, list[Tensor]]:
        """By the number that `layer` carries for the group's collectives; a root group is 0."""
        result: dict[int, list[Tensor]] = {}
        for tensor in self.tensors(rank):
            joins_root = self.wrap == "root" and tensor.layer == self.last_layer
            result.setdefault(0 if joins_root else tensor.layer, []).append(tensor)
        return result

    def group_of_layer(self, layer: int) -> int:
        return 0 if self.wrap == "root" and layer == self.last_layer else layer

    def gathered(self, group: int, rank: int = 0) -> int:
        """Elements that the group's collectives move: ceil chunks of dim 0 times dp; flat: padded to a multiple of dp.

        A flat group is as large on every rank of a tensor-parallel group, so that all cut norm weights alike.
        """
        tensors = self.groups(rank)[group]
        if self.layout == "flat":
            return self.padded(max(self.real(group, tp_index) for tp_index in range(self.tp)))
        return sum(self.padded(t.rows) * t.row_elements for t in tensors)

    def real(self, group: int, rank: int = 0) -> int:
        return sum(t.elements for t in self.groups(rank)[group])

    def padded(self, count: int) -> int:
        return -(-count // self.dp) * self.dp

    def is_kept_after_forward(self, group: int) -> bool:
        if self.wrap == "root" and group == 0:
            return True
        return self.reshard == "none" or (self.reshard == "blocks" and self.wrap == "blocks" and group == self.last_layer)

    def copies_out(self, group: int) -> bool:
        """Whether a gathered group must be rearranged before use."""
        return self.layout == "per-parameter" and self.dp > 1 and len(self.groups()[group]) > 1

    # --- what a rank holds ------------------------------------------------------------------------------------------

    def held(self, rank: int) -> dict[str, int]:
        """Elements that rest on a rank, by category."""
        owned, whole = self.owned(rank), sum(t.elements for t in self.tensors(rank))
        return {
            "parameters": owned if self.gathers_groups else whole,
            "gradients": whole if self.scenario in ("ddp", "zero1") else owned,
            "optimizer": whole if self.scenario == "ddp" else owned,
        }

    def owned(self, rank: int) -> int:
        """Elements of the rank's own shard."""
        return sum(self.owned_of_each(rank).values())

    def owned_of_each(self, rank: int) -> dict[str, int]:
        """Elements of the own shard, by tensor."""
        if self.gathers_groups and self.layout == "per-parameter":
            return {t.name: chunk(t.rows, self.dp, rank // self.tp) * t.row_elements for t in self.tensors(rank)}
        result = {}
        if self.gathers_groups:
            # Sorting is stable: the norms come first where tp > 1.
            sets = [(sorted(tensors, key=lambda t: self.tp > 1 and not t.is_norm), self.gathered(group, rank))
                    for group, tensors in self.groups(rank).items()]
        else:
            sets = [(bucket, self.padded(sum(t.elements for t in bucket))) for bucket in self.buckets()]
        for tensors, size in sets:
            block = size // self.dp
            begin = block * (rank // self.tp)
            offset = 0
            for t in tensors:
                result[t.name] = overlap(offset, offset + t.elements, begin, begin + block)
                offset += t.elements
        return result

    def bytes_per_element(self) -> dict[str, int]:
        if self.param_dtype == "fp32":
            return {"parameters": 4, "gradients": 4, "optimizer": 8}
        return {"parameters": 2, "gradients": 6 if self.fp32_grad_accum else 2, "optimizer": 12}

    # --- what a rank issues -----------------------------------------------------------------------------------------

    def operations(self, rank: int = 0) -> list["Operation"]:
        """Computes outside the optimizer and collectives, in order; parts of a layer's compute count as one."""
        if self.gathers_groups:
            return list(self._of_groups(rank))
        return list(self._of_buckets())

    def _of_groups(self, rank: int) -> Iterator["Operation"]:
        for micro in range(self.accum):
            down = range(self.last_layer + 1)
            yield from self._pass("forward", micro, list(down), list(self.groups()), self.prefetch[0], rank)
            needed = [g for g in self.groups() if not self.is_kept_after_forward(g)]
            yield from self._pass("backward", micro, list(reversed(down)), needed, self.prefetch[1], rank)
        yield from self._norm_gradients(rank)
        yield from self._clipping()

    def _pass(self, phase: str, micro: int, layers: list[int], needed: list[int], ahead: int,
              rank: int) -> Iterator["Operation"]:
        """A gather is issued `ahead` layers before the first that needs it, directly before that layer's compute."""
        uses = {g: [i for i, layer in enumerate(layers) if self.group_of_layer(layer) == g] for g in self.groups()}
        here = Operation(phase, micro)
        for position, layer in enumerate(layers):
            for group in sorted(needed, key=lambda g: uses[g][0]):
                if max(0, uses[group][0] - ahead) == position:
                    yield self._of_group(here, "all_gather", group, self.param_dtype, rank)
            yield replace(here, kind="compute", layer=layer)
            if self.tp > 1:
                yield from self._inside_layer(replace(here, layer=layer))
            if phase == "backward":
                for group in self.groups():
                    if uses[group][-1] == position:
                        yield self._of_group(here, "reduce_scatter", group, self.reduce_dtype, rank)

    def _of_group(self, here: "Operation", kind: str, group: int, dtype: str, rank: int) -> "Operation":
        return replace(here, kind=kind, layer=group, axis="dp", dtype=dtype, group_size=self.dp,
                       elements=self.gathered(group, rank), real=self.real(group, rank))

    def _inside_layer(self, here: "Operation") -> Iterator["Operation"]:
        """Tensor parallelism. An all-gather goes into a region of column- and row-parallel products, a reduction out of it."""
        size = self.tokens * self.hidden
        stream = replace(here, axis="tp", dtype=self.param_dtype, group_size=self.tp, elements=size, real=size)
        into = [replace(stream, kind="all_gather")] if self.sequence_parallel else []
        out_of = [replace(stream, kind="reduce_scatter" if self.sequence_parallel else "all_reduce")]
        is_block = 0 < here.layer < self.last_layer
        if here.phase == "forward":
            if is_block:
                yield from [*into, *out_of] * 2
            elif here.layer == 0:
                yield from out_of
            else:
                row = replace(stream, kind="all_reduce", dtype="fp32", elements=self.tokens, real=self.tokens)
                yield from [*into, row, row, row]
        elif is_block:
            if self.recompute == "full":
                yield from [*into, *out_of, *into]  # forward again, but for what follows w2
            yield from [*into, *out_of] * 2
        elif here.layer == 0:
            yield from into
        else:
            yield from out_of

    def _norm_gradients(self, rank: int) -> Iterator["Operation"]:
        if self.tp == 1 or not self.sequence_parallel:
            return
        owned = self.owned_of_each(rank)
        for tensor in reversed(self.tensors(rank)):
            if tensor.is_norm:
                size = owned[tensor.name]
                yield Operation("backward", self.accum - 1, "all_reduce", tensor.layer, -1, "tp", self.param_dtype, self.tp,
                                size, size)

    def _clipping(self) -> Iterator["Operation"]:
        if self.clip:
            yield Operation("optimizer", 0, "all_reduce", -1, -1, "world", "fp32", self.ranks, 1, 1)

    def buckets(self) -> list[list[Tensor]]:
        """Reverse declaration order; a bucket closes when its size reaches the cap. The default's first is 1 MiB with ddp."""
        cap = (self.bucket_mb or 25) * MIB
        result: list[list[Tensor]] = [[]]
        for tensor in reversed(self.tensors()):
            is_small = len(result) == 1 and self.bucket_mb is None and self.scenario == "ddp"
            if sum(t.elements for t in result[-1]) * BYTES[self.reduce_dtype] >= (MIB if is_small else cap):
                result.append([])
            result[-1].append(tensor)
        return result

    def _of_buckets(self) -> Iterator["Operation"]:
        reduction = "all_reduce" if self.scenario == "ddp" else "reduce_scatter"
        for micro in range(self.accum):
            if micro == 0 and self.param_gather == "overlap":
                yield from self._parameter_gathers("forward")
            for layer in range(self.last_layer + 1):
                yield Operation("forward", micro, "compute", layer)
            for layer in range(self.last_layer, -1, -1):
                yield Operation("backward", micro, "compute", layer)
                if self.scenario != "zero2" and micro + 1 < self.accum:
                    continue
                for index, bucket in enumerate(self.buckets()):
                    if bucket[-1].layer == layer:
                        yield self._of_bucket(Operation("backward", micro, reduction, bucket=index), self.reduce_dtype)
        if self.scenario != "ddp":
            yield from self._clipping()
        if self.gathers_buckets and self.param_gather == "end":
            yield from self._parameter_gathers("optimizer")

    def _parameter_gathers(self, phase: str) -> Iterator["Operation"]:
        """In the order in which forward needs them."""
        for index in reversed(range(len(self.buckets()))):
            yield self._of_bucket(Operation(phase, 0, "all_gather", bucket=index), self.param_dtype)

    def _of_bucket(self, here: "Operation", dtype: str) -> "Operation":
        size = sum(t.elements for t in self.buckets()[here.bucket])
        return replace(here, axis="dp", dtype=dtype, group_size=self.ranks, real=size,
                       elements=size if self.scenario == "ddp" else self.padded(size))

    # --- the ledger -------------------------------------------------------------------------------------------------

    def ledger(self, rank: int) -> dict[tuple[str, str], tuple[Fraction, Fraction]]:
        """Expected and padding by axis and quantity; measured must be their sum."""
        held, per = self.held(rank), self.bytes_per_element()
        rows: dict[tuple[str, str], tuple[Fraction, Fraction]] = {}
        padding = per["parameters"] * self.resting_padding()
        for category, size in per.items():
            rows["world", f"{category}_bytes"] = (Fraction(size * held[category]),
                                                  Fraction(padding if category == "parameters" else 0))
        rows["world", "static_bytes"] = (Fraction(sum(per[c] * held[c] for c in per)), Fraction(padding))

        issued = [o for o in self.operations(rank) if o.kind != "compute"]
        for axis in ("dp", "tp", "world"):
            here = [o for o in issued if o.axis == axis]
            if axis != "dp" and not here:
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

    def resting_padding(self) -> int:
        """Whole parameters rest with what pads their buckets; shards and whole gradients have none."""
        if not self.gathers_buckets:
            return 0
        sizes = [sum(t.elements for t in bucket) for bucket in self.buckets()]
        return sum(self.padded(size) - size for size in sizes)

    def textbook(self) -> dict[tuple[str, str], Fraction]:
        per = self.bytes_per_element()
        norms = sum(t.elements for t in self.declared() if t.is_norm)
        psi = Fraction(self.psi - norms, self.tp) + norms  # of a tensor-parallel rank
        sharded = {"ddp": set(), "zero1": {"optimizer"}, "zero2": {"gradients", "optimizer"}}.get(self.scenario, set(per))
        static = sum((psi * size / (self.dp if category in sharded else 1) for category, size in per.items()), Fraction(0))
        passes = {"ddp": 2, "zero1": 2, "zero2": self.accum + 1}.get(self.scenario, 3 * self.accum)
        return {("world", "textbook_static_bytes"): static,
                ("dp", "textbook_volume_elements"): passes * psi * Fraction(self.dp - 1, self.dp)}


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
