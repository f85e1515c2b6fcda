"""Deployments that several tests ask about."""

from shoal.plan.deployment import Deployment, Pool
from shoal.plan.lookup import catalog_models
from shoal.plan.work import ModelWork
from shoal.specs.catalog import load_catalog
from shoal.specs.hardware import Accelerator
from shoal.specs.layout import Layout


def work_of(name: str) -> ModelWork:
    return catalog_models()(name)


def accelerator(name: str) -> Accelerator:
    return load_catalog().accelerator(name)


def deployment(
    model: str = "meta-llama/Llama-3.1-70B",
    gpu: str = "h100_sxm",
    precision: str = "fp8",
    backend: str = "vllm",
    layout: Layout | None = None,
    concurrency: float = 32,
    prefill: Pool | None = None,
    lengths: tuple[float, float] = (1024, 1024),
) -> Deployment:
    pool = Pool(layout or Layout(tp=4))
    return Deployment(work_of(model), accelerator(gpu), precision, backend, pool, *lengths, concurrency, prefill)
