// BullMQ on Node.js. Publishing: addBulk, a thousand in a call. Consuming: one Worker, concurrency 100, finished jobs
// removed. The same as side.py: `node with_bullmq.js publish|consume MODULE OPTION`, the rest by the environment.
'use strict';

const fs = require('fs');
const path = require('path');
const { Queue, Worker } = require('bullmq');

const QUEUE = 'orders';
const BODY_BYTES = 400;
const BATCH = 1000;
const CONCURRENCY = 100;

const url = new URL(process.env.BENCH_URL);
const connection = { host: url.hostname, port: Number(url.port), db: Number(url.pathname.slice(1) || 0) };
const count = Number(process.env.BENCH_COUNT);
const folder = process.env.BENCH_FOLDER;

const now = () => Number(process.hrtime.bigint()) / 1e9;

// As bench.work makes it.
function order(number) {
  const value = {
    order_id: 'ord_' + String(number).padStart(12, '0'),
    customer: { id: (number * 7919) % 100003, name: 'Ada Lovelace', country: 'GB' },
    lines: [{ sku: 'A-1001', count: 2, cents: 1999 }, { sku: 'B-2002', count: 1, cents: 4950 }],
    note: '',
  };
  value.note = 'x'.repeat(BODY_BYTES - JSON.stringify(value).length);
  return value;
}

async function publish() {
  const orders = Array.from({ length: count }, (_, number) => order(number));
  const began = now();
  const cpu = process.cpuUsage();
  const queue = new Queue(QUEUE, { connection, defaultJobOptions: { removeOnComplete: true } });
  for (let start = 0; start < count; start += BATCH) {
    await queue.addBulk(orders.slice(start, start + BATCH).map((data) => ({ name: QUEUE, data })));
  }
  await queue.close();
  const used = process.cpuUsage(cpu);
  const told = { wall_s: now() - began, cpu_s: (used.user + used.system) / 1e6, rss_mb: process.memoryUsage().rss / 2 ** 20 };
  console.log(JSON.stringify(told));
}

function consume() {
  const seen = new Set();
  let repeats = 0;
  const mark = (name) => {
    const file = path.join(folder, name + '.part');
    fs.writeFileSync(file, JSON.stringify({ at: now(), repeats }));
    fs.renameSync(file, path.join(folder, name));
  };
  let hasBegun = false;
  new Worker(QUEUE, async (job) => {
    if (!hasBegun) {
      hasBegun = true;
      mark('begin');
    }
    const id = job.data.order_id;
    if (seen.has(id)) repeats += 1;
    seen.add(id);
    if (seen.size === count) mark('end');
  }, { connection, concurrency: CONCURRENCY, removeOnComplete: { count: 0 } });
}

if (process.argv[2] === 'publish') publish(); else consume();
