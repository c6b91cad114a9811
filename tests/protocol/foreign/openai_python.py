"""OpenAI's own Python client as the judge of the server's OpenAI API.

    openai_python.py HOST:PORT

The server has the models of examples/tiny_chat. Prints each check that held.
"""

import asyncio
import sys

import openai

BASE = f"http://{sys.argv[1]}/v1"
HELLO = [{"role": "user", "content": "hello"}]
ANSWER = "hello! how can i help you?"
COUNT = [{"role": "user", "content": "can you count to twenty?"}]


def models(client: openai.OpenAI) -> None:
    assert sorted(model.id for model in client.models.list()) == ["tiny_chat", "tiny_embed"]
    model = client.models.retrieve("tiny_chat")
    assert (model.id, model.object, model.owned_by) == ("tiny_chat", "model", "stoker")


def embeddings(client: openai.OpenAI) -> None:
    texts = ["hello", "hi there", "what is a tensor"]
    for encoding in ({}, {"encoding_format": "float"}):
        found = client.embeddings.create(model="tiny_embed", input=texts, **encoding)
        assert [each.index for each in found.data] == [0, 1, 2]
        assert all(len(each.embedding) == 64 for each in found.data)
        assert all(abs(sum(value * value for value in each.embedding) - 1) < 1e-4 for each in found.data)
        assert found.usage.prompt_tokens == found.usage.total_tokens > 0
    alone = client.embeddings.create(model="tiny_embed", input="hi there").data[0].embedding
    assert all(abs(a - b) < 1e-5 for a, b in zip(alone, found.data[1].embedding, strict=True))
    assert len(client.embeddings.create(model="tiny_embed", input=[f"text {n}" for n in range(100)]).data) == 100


def chat(client: openai.OpenAI) -> None:
    found = client.chat.completions.create(model="tiny_chat", messages=HELLO)
    [choice] = found.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", ANSWER, "stop")
    assert found.usage.total_tokens == found.usage.prompt_tokens + found.usage.completion_tokens > 5
    assert found.id.startswith("chatcmpl-")
    assert found._request_id == found.id
    more = [*HELLO, {"role": "assistant", "content": ANSWER}, {"role": "user", "content": [{"type": "text", "text": "count to three"}]}]
    assert client.chat.completions.create(model="tiny_chat", messages=more).choices[0].message.content == "one two three."


def chat_stream(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(model="tiny_chat", messages=HELLO, stream=True, stream_options={"include_usage": True}))
    *texts, last = chunks
    assert texts[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in texts) == ANSWER
    assert texts[-1].choices[0].finish_reason == "stop"
    assert len(texts) > 5
    assert (last.choices, last.usage.completion_tokens) == ([], len(texts) - 2)


def stream_helper(client: openai.OpenAI) -> None:
    """The client's own accumulator of a stream."""
    with client.chat.completions.stream(model="tiny_chat", messages=HELLO) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.content == ANSWER


def completions(client: openai.OpenAI) -> None:
    found = client.completions.create(model="tiny_chat", prompt=["one two three", "one two"], max_tokens=2, echo=True, n=2)
    assert [choice.index for choice in found.choices] == [0, 1, 2, 3]
    assert found.choices[0].text.startswith("one two three")
    assert {choice.finish_reason for choice in found.choices} == {"length"}
    assert found.usage.completion_tokens == 8
    texts = [chunk.choices[0].text for chunk in client.completions.create(model="tiny_chat", prompt="one two", max_tokens=3, stream=True)]
    assert len([text for text in texts if text]) == 3


def limits(client: openai.OpenAI) -> None:
    short = client.chat.completions.create(model="tiny_chat", messages=COUNT, max_completion_tokens=3).choices[0]
    assert (short.message.content, short.finish_reason) == ("one two three", "length")
    stopped = client.chat.completions.create(model="tiny_chat", messages=COUNT, stop=[" four five"]).choices[0]
    assert (stopped.message.content, stopped.finish_reason) == ("one two three", "stop")


def sampling(client: openai.OpenAI) -> None:
    def texts(seed: int) -> list[str]:
        found = client.chat.completions.create(
            model="tiny_chat", messages=[{"role": "user", "content": "tell me a"}], temperature=2, top_p=0.95, seed=seed, n=3
        )
        return [choice.message.content for choice in sorted(found.choices, key=lambda choice: choice.index)]

    assert texts(1) == texts(1)
    assert len({*texts(1), *texts(10)}) > 1


def errors(client: openai.OpenAI) -> None:
    for create, kind, code, param in (
        (lambda: client.chat.completions.create(model="nope", messages=HELLO), openai.NotFoundError, "model_not_found", "model"),
        (lambda: client.chat.completions.create(model="tiny_embed", messages=HELLO), openai.NotFoundError, "model_not_found", "model"),
        (lambda: client.chat.completions.create(model="tiny_chat", messages=[]), openai.BadRequestError, None, "messages"),
        (lambda: client.completions.create(model="tiny_chat", prompt="x", logprobs=2), openai.BadRequestError, None, "logprobs"),
        (lambda: client.embeddings.create(model="tiny_embed", input=[1, 2, 3]), openai.BadRequestError, "unsupported_value", "input"),
        (lambda: client.responses.create(model="tiny_chat", input="x"), openai.NotFoundError, "unknown_url", None),
    ):
        try:
            create()
        except kind as error:
            assert error.param == param, error
            assert code is None or error.code == code, error
        else:
            raise AssertionError(f"{kind.__name__} was expected")


async def aio() -> None:
    async with openai.AsyncOpenAI(base_url=BASE, api_key="none", max_retries=0) as client:
        stream = await client.chat.completions.create(model="tiny_chat", messages=HELLO, stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == ANSWER
        found = await asyncio.gather(*(client.chat.completions.create(model="tiny_chat", messages=HELLO) for _ in range(8)))
        assert {each.choices[0].message.content for each in found} == {ANSWER}


def leaving(client: openai.OpenAI) -> None:
    """Leaves a stream of many choices after its first piece; the test looks for cancelled requests."""
    with client.chat.completions.create(model="tiny_chat", messages=COUNT, stream=True, n=100) as stream:
        next(iter(stream))


def main() -> None:
    with openai.OpenAI(base_url=BASE, api_key="none", max_retries=0) as client:
        for check in (models, embeddings, chat, chat_stream, stream_helper, completions, limits, sampling, errors, leaving):
            check(client)
            print(check.__name__.replace("_", "-"), flush=True)
    asyncio.run(aio())
    print("aio")


main()
