"""Any OpenAI-compatible endpoint: asked for its models to see that it lives, and for nothing else."""

from shoal.fleet.adapters.base import HttpAdapter, LaunchRequest, NotStartable, Traits
from shoal.fleet.launch.process import Command


class OpenAiAdapter(HttpAdapter):
    health_path = b"/v1/models"
    metrics_path = None


class OpenAi:
    traits = Traits(any_request_id=False)
    adapter = OpenAiAdapter

    def command(self, order: LaunchRequest) -> Command:
        raise NotStartable(f"pool {order.pool.name}: an engine of kind `openai` can't be started; give its `urls`")
