// OpenAI's own Node client as the judge of the server's OpenAI API.
//
//   node openai.js HOST:PORT
//
// The server has the models of examples/tiny_chat. Prints each check that held.
'use strict';

const assert = require('node:assert/strict');
const OpenAI = require('openai').default;

const client = new OpenAI({ baseURL: `http://${process.argv[2]}/v1`, apiKey: 'none', maxRetries: 0 });
const HELLO = [{ role: 'user', content: 'hello' }];
const ANSWER = 'hello! how can i help you?';
const COUNT = [{ role: 'user', content: 'can you count to twenty?' }];

async function models() {
  const found = [];
  for await (const model of client.models.list()) found.push(model.id);
  assert.deepEqual(found.sort(), ['tiny_chat', 'tiny_embed']);
  assert.equal((await client.models.retrieve('tiny_embed')).id, 'tiny_embed');
}

async function embeddings() {
  for (const encoding_format of ['float', undefined]) {
    const found = await client.embeddings.create({ model: 'tiny_embed', input: ['hello', 'hi there'], encoding_format });
    assert.equal(found.data.length, 2);
    for (const { embedding } of found.data) {
      assert.equal(embedding.length, 64);
      assert.ok(Math.abs(embedding.reduce((sum, value) => sum + value * value, 0) - 1) < 1e-4);
    }
  }
}

async function chat() {
  const found = await client.chat.completions.create({ model: 'tiny_chat', messages: HELLO });
  assert.deepEqual([found.choices[0].message.content, found.choices[0].finish_reason], [ANSWER, 'stop']);
  assert.equal(found.usage.total_tokens, found.usage.prompt_tokens + found.usage.completion_tokens);
  assert.equal(found._request_id, found.id);
}

async function chatStream() {
  const stream = await client.chat.completions.create({ model: 'tiny_chat', messages: HELLO, stream: true, stream_options: { include_usage: true } });
  const pieces = [];
  let usage;
  for await (const chunk of stream) {
    if (chunk.choices.length) pieces.push(chunk.choices[0].delta.content ?? '');
    usage = chunk.usage;
  }
  assert.equal(pieces.join(''), ANSWER);
  assert.ok(pieces.length > 5 && usage.completion_tokens > 5);
}

/** The client's own accumulator of a stream. */
async function streamHelper() {
  const final = await client.chat.completions.stream({ model: 'tiny_chat', messages: HELLO }).finalChatCompletion();
  assert.equal(final.choices[0].message.content, ANSWER);
}

async function completions() {
  const found = await client.completions.create({ model: 'tiny_chat', prompt: ['one two', 'one two three'], max_tokens: 2, stop: 'never' });
  assert.deepEqual(found.choices.map((choice) => [choice.index, choice.text]), [[0, ' three four'], [1, ' four five']]);
  const texts = [];
  for await (const chunk of await client.completions.create({ model: 'tiny_chat', prompt: 'one two', max_tokens: 3, stream: true })) {
    texts.push(chunk.choices[0].text);
  }
  assert.equal(texts.join(''), ' three four five');
}

async function errors() {
  const create = (more) => client.chat.completions.create({ model: 'tiny_chat', messages: HELLO, ...more });
  await assert.rejects(create({ model: 'nope' }), (error) => error instanceof OpenAI.NotFoundError && error.code === 'model_not_found');
  await assert.rejects(create({ temperature: -1 }), (error) => error instanceof OpenAI.BadRequestError && error.param === 'temperature');
  await assert.rejects(create({ n: 1000, stream: true }), (error) => error instanceof OpenAI.BadRequestError && error.param === 'n');
}

/** Leaves a stream of many choices after its first piece; the test looks for cancelled requests. */
async function leaving() {
  const stream = await client.chat.completions.create({ model: 'tiny_chat', messages: COUNT, stream: true, n: 100 });
  for await (const chunk of stream) {
    assert.ok(chunk.id);
    break;
  }
}

(async () => {
  for (const check of [models, embeddings, chat, chatStream, streamHelper, completions, errors, leaving]) {
    await check();
    console.log(check.name);
  }
})().catch((error) => {
  console.error(error);
  process.exit(1);
});
