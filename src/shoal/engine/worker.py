"""One rank: holds a share of a model, its KV memory and, on one rank of a lane, the sampler; executes step plans.

Decides nothing. What a rank remembers of a sequence is what plans told it: the block table so far. A `reset`
replaces it. All ranks of a lane are given the same plans, and derive the same rows from them: nothing that one rank
alone knows (a grammar that did not compile, say) may change the shape of what they exchange.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from shoal.engine.batch import Batch, SequenceRows
from shoal.engine.incremental_batch import BatchBuilder
from shoal.engine.kv.cache import KvCache
from shoal.engine.messages import Admission, StepCommand
from shoal.engine.models.decoder import CausalLM
from shoal.engine.parallel.mesh import Mesh
from shoal.engine.sampling.sampler import Sampler, SampleRow
from shoal.policy.batching.plan import SampledSequence, ScheduledSequence, StepResult


@dataclass(slots=True)
class _Table:
    """A sequence's block table on this rank; grows in place."""

    blocks: npt.NDArray[np.int32]
    length: int = 0

    def extend(self, blocks: tuple[int, ...]) -> None:
        end = self.length + len(blocks)
        if end > len(self.blocks):
            self.blocks = np.resize(self.blocks, max(end, 2 * len(self.blocks)))
        self.blocks[self.length : end] = blocks
        self.length = end

    @property
    def view(self) -> npt.NDArray[np.int32]:
        return self.blocks[: self.length]


@dataclass(slots=True)
class _PromptRows:
    """Which prompt rows of a sequence want log-probabilities."""

    prompt: tuple[int, ...]

    def targets(self, entry: ScheduledSequence) -> tuple[int, ...]:
        """The tokens that this chunk's rows predict; none once output is being recomputed after a preemption."""
        end = entry.start + len(entry.tokens)
        if end > len(self.prompt):
            return ()
        return self.prompt[entry.start + 1 : end + 1]


class Worker:
    """Executes steps on one device. Not thread-safe: one caller at a time."""

    def __init__(
        self,
        model: CausalLM,
        kv: KvCache,
        sampler: Sampler | None,
        device: torch.device,
        mesh: Mesh | None = None,
    ) -> None:
        """`sampler` is given where `mesh.samples`; `mesh` None: one rank."""
        self._model = model
        self._kv = kv
        self._sampler = sampler
        self._device = device
        self._mesh = mesh or Mesh.single()
        cp = self._mesh.cp
        self._batch_builder = BatchBuilder(kv.block_size, device, (cp.index, cp.size))
        self._tables: dict[int, _Table] = {}
        self._prompts: dict[int, _PromptRows] = {}
        self._adapters: dict[int, int] = {}
        """Numbers of the adapters of sequences that have one."""
        self._refused: dict[int, str] = {}
        """Sequences whose sampler state could not be made, and why: they fail alone, not the step."""

    def execute(self, command: StepCommand) -> StepResult:
        """Run one step. Per-sequence failures are in the result, which is empty on ranks that don't sample; an
        exception means the rank is broken.
        """
        plan = command.plan
        for sequence_id in plan.finished:
            self._forget(sequence_id)
        for admission in command.admissions:
            self._admit(admission)
        self._kv.copy_blocks(plan.copies)
        if command.placement is not None:
            self._model.place_experts(command.placement)
        sampled: list[SampledSequence] = []
        if plan.sequences or self._mesh.layout.lock_step:
            sampled = self._compute(plan.sequences)
        loads = self._model.take_expert_loads() if command.report_load else ()
        return StepResult(plan.step, tuple(sampled), loads)

    @torch.inference_mode()
    def _compute(self, entries: tuple[ScheduledSequence, ...]) -> list[SampledSequence]:
        shares: list[SequenceRows] = []
        rows: list[SampleRow] = []
        row = 0
        for entry in entries:
            table = self._table(entry)
            prompt = self._prompts.get(entry.sequence_id)
            targets = prompt.targets(entry) if prompt is not None else ()
            drafts = entry.tokens[len(entry.tokens) - entry.drafts :]
            wanted = len(targets) + (1 + entry.drafts if entry.sample else 0)
            adapter = self._adapters.get(entry.sequence_id, 0)
            shares.append(SequenceRows(entry.tokens, entry.start, table.view, wanted, table, adapter))
            if entry.sequence_id in self._refused:
                rows.append(SampleRow(entry.sequence_id, row, row, False))
            else:
                rows.append(SampleRow(entry.sequence_id, row, row + wanted, entry.sample, targets, drafts))
            row += wanted
        batch = self._batch_builder.build(shares)
        hidden = self._model(batch, self._kv)
        wanted_hidden = self._wanted(batch, hidden)
        self._scrub_failed(wanted_hidden, shares)
        if not self._mesh.last_stage or self._mesh.cp.index > 0:
            return []
        logits = self._model.logits(wanted_hidden)
        if self._sampler is None:
            return []
        sampled = self._sampler.sample(logits, rows)
        return [self._refuse(s) if s.sequence_id in self._refused else s for s in sampled]

    def _wanted(self, batch: Batch, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states of the rows whose logits are wanted, on every rank of the stage: [R, H]."""
        everything = len(batch.logit_rows) == len(hidden)
        own = hidden if everything else hidden.index_select(0, batch.logit_rows)
        stripe = batch.stripe
        if stripe is None or not len(stripe.logit_order):
            return own
        return self._mesh.cp.all_gather(own, 0, stripe.logit_sizes).index_select(0, stripe.logit_order)

    def _table(self, entry: ScheduledSequence) -> _Table:
        table = self._tables.get(entry.sequence_id)
        if table is None or entry.reset:
            table = self._tables[entry.sequence_id] = _Table(np.zeros(max(16, len(entry.blocks)), np.int32))
        table.extend(entry.blocks)
        return table

    def _admit(self, admission: Admission) -> None:
        sequence_id = admission.sequence_id
        self._prompts.pop(sequence_id, None)
        if admission.params.prompt_logprobs is not None and not admission.output:
            self._prompts[sequence_id] = _PromptRows(admission.prompt)
        if admission.lora is not None:
            self._adapters[sequence_id] = self._model.adapter_numbers[admission.lora]
        if self._sampler is None:
            return
        try:
            self._sampler.add(sequence_id, admission.params, admission.prompt, admission.output)
        except ValueError as error:
            self._refused[sequence_id] = str(error)

    def _refuse(self, result: SampledSequence) -> SampledSequence:
        return SampledSequence(
            result.sequence_id, (), error=self._refused[result.sequence_id], constraint_failed=True
        )

    def _scrub_failed(self, wanted: torch.Tensor, shares: list[SequenceRows]) -> None:
        """Zero blocks of sequences that met a NaN or infinity: masked slots are multiplied too, and 0 · NaN is NaN.

        A row that isn't finite stays so through all later layers, so that the sampler ends its sequence; every rank
        sees it where its own memory may hold some. `wanted` are the hidden states of the shares' last rows.
        """
        # One number tells for almost every step; a sum may be beyond what is finite though its terms aren't.
        if not len(wanted) or math.isfinite(float(wanted.sum())):
            return
        finite = wanted.isfinite().all(1)
        if bool(finite.all()):
            return
        start = 0
        for share in shares:
            if not bool(finite[start : start + share.logits].all()):
                self._scrub(np.asarray(share.blocks))
            start += share.logits

    def _scrub(self, blocks: npt.NDArray[np.int32]) -> None:
        index = torch.from_numpy(blocks.astype(np.int64)).to(self._device)
        dirty = torch.zeros(len(blocks), dtype=torch.bool, device=self._device)
        for layer in self._kv.layers:
            for part in layer.parts:
                dirty |= ~part.index_select(0, index).isfinite().flatten(1).all(1)
        self._kv.clear_blocks(index[dirty].tolist())

    def _forget(self, sequence_id: int) -> None:
        self._tables.pop(sequence_id, None)
        self._prompts.pop(sequence_id, None)
        self._adapters.pop(sequence_id, None)
        self._refused.pop(sequence_id, None)
        if self._sampler is not None:
            self._sampler.remove(sequence_id)

    @property
    def kv(self) -> KvCache:
        """This rank's KV memory."""
        return self._kv

    @property
    def live_sequences(self) -> int:
        """Sequences this rank still holds state of; for leak checks."""
        return len(self._tables)

    def close(self) -> None:
        self._tables.clear()
        self._prompts.clear()
        self._adapters.clear()
