"""One rank: holds a model, its KV memory and its sampler, and executes step plans. Decides nothing.

What a rank remembers of a sequence is what plans told it: the block table so far. A `reset` replaces it.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from shoal.engine.batch import SequenceRows, build_batch
from shoal.engine.kv.cache import KvCache
from shoal.engine.messages import Admission, StepCommand
from shoal.engine.models.decoder import CausalLM
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

    def __init__(self, model: CausalLM, kv: KvCache, sampler: Sampler, device: torch.device) -> None:
        self._model = model
        self._kv = kv
        self._sampler = sampler
        self._device = device
        self._tables: dict[int, _Table] = {}
        self._prompts: dict[int, _PromptRows] = {}
        self._refused: dict[int, str] = {}
        """Sequences whose sampler state could not be made, and why: they fail alone, not the step."""

    def execute(self, command: StepCommand) -> StepResult:
        """Run one step. Per-sequence failures are in the result; an exception means the rank is broken."""
        plan = command.plan
        for sequence_id in plan.finished:
            self._forget(sequence_id)
        for admission in command.admissions:
            self._admit(admission)
        self._kv.copy_blocks(plan.copies)
        logits, rows = self._compute(plan.sequences)
        sampled = [
            self._refuse(s) if s.sequence_id in self._refused else s for s in self._sampler.sample(logits, rows)
        ]
        for result in sampled:
            if result.error is not None:
                self._scrub(result.sequence_id)
        return StepResult(plan.step, tuple(sampled))

    @torch.inference_mode()
    def _compute(self, entries: tuple[ScheduledSequence, ...]) -> tuple[torch.Tensor, list[SampleRow]]:
        shares: list[SequenceRows] = []
        rows: list[SampleRow] = []
        row = 0
        for entry in entries:
            table = self._table(entry)
            prompt = self._prompts.get(entry.sequence_id)
            targets = prompt.targets(entry) if prompt is not None else ()
            drafts = entry.tokens[len(entry.tokens) - entry.drafts :]
            sample = entry.sample and entry.sequence_id not in self._refused
            wanted = len(targets) + (1 + entry.drafts if sample else 0)
            shares.append(SequenceRows(entry.tokens, entry.start, table.view, wanted))
            rows.append(SampleRow(entry.sequence_id, row, row + wanted, sample, targets, drafts))
            row += wanted
        batch = build_batch(shares, self._kv.block_size, self._device)
        hidden = self._model(batch, self._kv)
        return self._model.logits(hidden.index_select(0, batch.logit_rows)), rows

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
        try:
            self._sampler.add(sequence_id, admission.params, admission.prompt, admission.output)
        except ValueError as error:
            self._refused[sequence_id] = str(error)

    def _refuse(self, result: SampledSequence) -> SampledSequence:
        return SampledSequence(result.sequence_id, (), error=self._refused[result.sequence_id])

    def _scrub(self, sequence_id: int) -> None:
        """Zero blocks in which a failed sequence left a NaN: masked slots are still multiplied."""
        blocks = self._tables[sequence_id].view
        index = torch.from_numpy(blocks.astype(np.int64)).to(self._device)
        dirty = torch.zeros(len(blocks), dtype=torch.bool, device=self._device)
        for layer in self._kv.layers:
            for part in (layer.k, layer.v):
                dirty |= ~part.index_select(0, index).isfinite().flatten(1).all(1)
        self._kv.clear_blocks(index[dirty].tolist())

    def _forget(self, sequence_id: int) -> None:
        self._tables.pop(sequence_id, None)
        self._prompts.pop(sequence_id, None)
        self._refused.pop(sequence_id, None)
        self._sampler.remove(sequence_id)

    @property
    def live_sequences(self) -> int:
        """Sequences this rank still holds state of; for leak checks."""
        return len(self._tables)

    def close(self) -> None:
        self._tables.clear()
        self._prompts.clear()
