from collections.abc import AsyncIterator


class Speaker:
    def __init__(self, context):
        self.context = context

    async def predict(self, prompt: str, times: int = 2) -> AsyncIterator[str]:
        for index in range(times):
            yield f"{prompt} {self.context.model_name} {index}"
