// Tests of the JavaScript client pulsar-flex with the broker, one fact per function.
//
// pytest runs each against its broker: node compat.js name (test_official_javascript_client.py).
// The comment `Feature: name, name` above a function names what it shows, for docs/clients.md.

"use strict";

const assert = require("node:assert/strict");
const { createRequire } = require("node:module");
// The packages are in the build folder, not beside this file.
const { Consumer, Producer } = createRequire(process.env.PACKAGES + "/")("pulsar-flex");

const SOON_MS = 60_000; // a limit for expected messages, even on a busy machine
const NOTHING_MS = 1500; // it checks for messages once a second
const { EXCLUSIVE, FAILOVER, SHARED, KEY_SHARED } = Consumer.SUB_TYPES;
const facts = {};

const topicOf = (name) => `persistent://public/default/javascript-${name}`;
const numbers = (count) => Array.from({ length: count }, (_, number) => String(number));
const address = (url) => [url.replace("pulsar://", "")];

async function within(work, what) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what} did not come in time`)), SOON_MS);
  });
  try {
    return await Promise.race([work, late]);
  } finally {
    clearTimeout(timer);
  }
}

async function producer(topic, options = {}) {
  const made = new Producer({
    topic,
    discoveryServers: address(process.env.SERVICE_URL),
    producerAccessMode: Producer.ACCESS_MODES.SHARED,
    ...options,
  });
  await within(made.create(), "a producer");
  return made;
}

// A consumer with its received messages; `take` decides what happens to a message.
async function subscribe(topic, subType, take = ({ ack }) => ack(), options = {}) {
  const consumer = new Consumer({
    topic,
    discoveryServers: address(process.env.SERVICE_URL),
    subscription: "s",
    subType,
    consumerName: "c",
    initialPosition: Consumer.INITIAL_POSITION.EARLIEST,
    ...options,
  });
  await within(consumer.subscribe(), "a subscription");
  const found = [];
  const onMessage = async (message) => {
    found.push(message);
    await take(message, found.length);
  };
  return { consumer, found, start: () => consumer.run({ onMessage, autoAck: false }) };
}

const texts = (found) => found.map(({ message }) => message.toString());

async function until(condition, what) {
  const deadline = Date.now() + SOON_MS;
  while (!condition()) {
    assert(Date.now() < deadline, `never: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

async function received(count, ...subscribed) {
  const all = () => subscribed.flatMap(({ found }) => found);
  await until(() => all().length >= count, `${count} messages`);
  await new Promise((resolve) => setTimeout(resolve, NOTHING_MS));
  assert.equal(all().length, count);
}

async function send(made, values, batched) {
  const messages = values.map((payload) => ({ payload, properties: { p: "q" } }));
  if (batched) {
    await within(made.sendBatch({ messages }), "a receipt");
  } else {
    for (const message of messages) await within(made.sendMessage(message), "a receipt");
  }
}

// Feature: exclusive, batches, keys and properties
facts.anExclusiveConsumerGetsAllInOrder = async () => {
  const topic = topicOf("exclusive");
  const subscribed = await subscribe(topic, EXCLUSIVE);
  await subscribed.start();
  const made = await producer(topic);
  await send(made, numbers(30), true);
  await send(made, numbers(10), false);
  await received(40, subscribed);
  assert.deepEqual(texts(subscribed.found), [...numbers(30), ...numbers(10)]);
  assert.deepEqual(subscribed.found.at(-1).properties, { p: "q" });
};

// Feature: failover
facts.aFailoverConsumerWaitsForItsTurn = async () => {
  const topic = topicOf("failover");
  const active = await subscribe(topic, FAILOVER, undefined, { consumerName: "a" });
  const waiting = await subscribe(topic, FAILOVER, undefined, { consumerName: "b" });
  await active.start();
  await waiting.start();
  await send(await producer(topic), numbers(10), false);
  await received(10, active, waiting);
  assert.deepEqual([active.found.length, waiting.found.length].sort(), [0, 10]);
};

// Feature: shared
facts.sharedConsumersDivideTheMessages = async () => {
  const topic = topicOf("shared");
  const options = { receiveQueueSize: 5 };
  const both = [
    await subscribe(topic, SHARED, undefined, options),
    await subscribe(topic, SHARED, undefined, options),
  ];
  for (const each of both) await each.start();
  await send(await producer(topic), numbers(40), false);
  await received(40, ...both);
  const seen = texts(both.flatMap(({ found }) => found));
  assert.deepEqual(new Set(seen), new Set(numbers(40)));
};

// Feature: key_shared
facts.keySharedConsumersGetEachMessageOnce = async () => {
  const topic = topicOf("key-shared"); // this client sends no keys
  const both = [await subscribe(topic, KEY_SHARED), await subscribe(topic, KEY_SHARED)];
  for (const each of both) await each.start();
  await send(await producer(topic), numbers(10), false);
  await received(10, ...both);
  const seen = texts(both.flatMap(({ found }) => found));
  assert.deepEqual(new Set(seen), new Set(numbers(10)));
};

// Feature: negative acknowledgement
facts.aNegativeAcknowledgementBringsAMessageAgain = async () => {
  const topic = topicOf("negative");
  const take = ({ ack }, count) => ack(count === 1 ? { type: Consumer.ACK_TYPES.NEGATIVE } : {});
  const subscribed = await subscribe(topic, SHARED, take);
  await subscribed.start();
  await send(await producer(topic), ["m"], false);
  await received(2, subscribed);
  assert.deepEqual(texts(subscribed.found), ["m", "m"]);
  assert.deepEqual(subscribed.found.map(({ redeliveryCount }) => redeliveryCount), [0, 1]);
};

// Feature: cumulative acknowledgement
facts.aCumulativeAcknowledgementCoversAllBefore = async () => {
  const topic = topicOf("cumulative");
  const take = async ({ ack }, count) => {
    if (count === 6) await ack({ type: Consumer.ACK_TYPES.CUMULATIVE });
  };
  const first = await subscribe(topic, FAILOVER, take);
  await first.start();
  await send(await producer(topic), numbers(10), false);
  await received(10, first);
  const second = await subscribe(topic, FAILOVER, undefined, { consumerName: "d" });
  await second.start();
  first.consumer._client.getCnx().close();
  await until(() => second.found.length >= 4, "the rest");
  assert.deepEqual(texts(second.found).slice(0, 4), numbers(10).slice(6));
};

// Feature: login by token
facts.aRightTokenIsLetIn = async () => {
  const topic = topicOf("token");
  const login = {
    discoveryServers: address(process.env.SECURED_URL),
    jwt: process.env.TOKEN,
  };
  const subscribed = await subscribe(topic, EXCLUSIVE, undefined, login);
  await subscribed.start();
  await send(await producer(topic, login), ["m"], false);
  await received(1, subscribed);
};

facts[process.argv[2]]().then(
  () => process.exit(0), // connections stay open
  (error) => {
    console.error(error);
    process.exit(1);
  }
);
