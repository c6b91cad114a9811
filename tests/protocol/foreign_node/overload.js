// An unmodified @grpc/grpc-js client that overloads a server on one connection, beside good calls on the same one.
//
//   node overload.js HOST:PORT MODE SECONDS CALLS_PER_S REQUESTS
//
// As tests/protocol/foreign/overload.py, in its arguments and in what it prints.
'use strict';

const grpc = require('@grpc/grpc-js');

const [address, mode, seconds, callsPerS, requests] = process.argv.slice(2);
const { bad, good } = Object.fromEntries(Object.entries(JSON.parse(requests)).map(([name, text]) => [name, Buffer.from(text, 'base64')]));
const INFER = '/inference.GRPCInferenceService/ModelInfer';
const GOOD_PER_S = 20;
const TICK_MS = 10;
const CANCEL_AFTER_MS = 10;
const DEADLINE_MS = 30;
const PATIENCE_MS = 30_000;
// Below the number of streams that a server allows by default.
const MOST_AT_ONCE = 900;

const client = new grpc.Client(address, grpc.credentials.createInsecure(), { 'grpc.use_local_subchannel_pool': 1 });
const asIs = (buffer) => buffer;
const told = { sent: 0, ended: 0, unexpected: {}, good_sent: 0, good: 0, lost: {} };
let open = 0;

const count = (table, error) => {
  const text = error ? `${grpc.status[error.code]} ${error.details}`.slice(0, 160) : 'OK';
  table[text] = (table[text] || 0) + 1;
};

function isExpected(error) {
  if (!error) return mode === 'full';
  if (mode === 'full') return error.code === grpc.status.UNAVAILABLE && error.details.includes('queue');
  const codes = { unknown: grpc.status.NOT_FOUND, deadline: grpc.status.DEADLINE_EXCEEDED, cancel: grpc.status.CANCELLED };
  return error.code === codes[mode];
}

function ask(message, patienceMs, done) {
  open += 1;
  return client.makeUnaryRequest(INFER, asIs, asIs, message, { deadline: Date.now() + patienceMs }, (error) => {
    open -= 1;
    done(error);
  });
}

function badCall() {
  const call = ask(bad, mode === 'deadline' ? DEADLINE_MS : PATIENCE_MS, (error) => {
    if (isExpected(error)) told.ended += 1;
    else count(told.unexpected, error);
  });
  if (mode === 'cancel') setTimeout(() => call.cancel(), CANCEL_AFTER_MS);
}

function goodCall() {
  ask(good, PATIENCE_MS, (error) => {
    if (error) count(told.lost, error);
    else told.good += 1;
  });
}

function finish() {
  if (open) return setTimeout(finish, TICK_MS);
  client.close();
  console.log(JSON.stringify(told));
}

function overload(begunMs) {
  const elapsedS = (performance.now() - begunMs) / 1000;
  if (elapsedS >= Number(seconds)) return finish();
  for (; told.sent < elapsedS * Number(callsPerS) && open < MOST_AT_ONCE; told.sent += 1) badCall();
  for (; told.good_sent < elapsedS * GOOD_PER_S; told.good_sent += 1) goodCall();
  setTimeout(overload, TICK_MS, begunMs);
}

ask(good, PATIENCE_MS, (error) => {
  if (error) throw error;
  overload(performance.now());
});
