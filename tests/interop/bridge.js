/* Node's own BullMQ, told what to do by lines of JSON on stdin; answers and what happens are lines of JSON on stdout.
 *
 *   {"call": 1, "do": "add", "queue": "orders", "name": "n", "data": {}, "opts": {}}   ->  {"call": 1, "value": "id"}
 *   {"event": "run", "queue": "orders", "id": "7", "data": {}, "attemptsMade": 0, ...}
 *
 * A worker ("work") fails the first `failures` runs of each job; with `unrecoverable` for good; with `hang` it never
 * ends a run.
 */
const { FlowProducer, Queue, QueueEvents, UnrecoverableError, Worker } = require("bullmq");

const url = new URL(process.argv[2]);
const connection = { host: url.hostname, port: Number(url.port), maxRetriesPerRequest: null };
const queues = new Map();
const workers = new Map();
const listeners = [];

const say = (line) => process.stdout.write(JSON.stringify(line) + "\n");
const queueOf = (name) => {
  if (!queues.has(name)) queues.set(name, new Queue(name, { connection }));
  return queues.get(name);
};

const seen = new Map();
const run = (queue, given) => async (job) => {
  say({
    event: "run", queue, id: job.id, name: job.name, data: job.data, opts: job.opts, attemptsMade: job.attemptsMade,
    attemptsStarted: job.attemptsStarted, priority: job.priority, at: Date.now(),
  });
  const runs = (seen.get(job.id) || 0) + 1;
  seen.set(job.id, runs);
  if (given.hang) await new Promise(() => {});
  if (given.progress !== undefined) await job.updateProgress(given.progress);
  if (given.unrecoverable) throw new UnrecoverableError("never");
  if (runs <= (given.failures || 0)) throw new Error(`run ${runs} failed`);
  return { runs };
};

const commands = {
  add: async ({ queue, name, data, opts }) => (await queueOf(queue).add(name || "job", data, opts)).id,
  addBulk: async ({ queue, jobs }) => (await queueOf(queue).addBulk(jobs)).length,
  flow: async ({ flow }) => {
    const producer = new FlowProducer({ connection });
    const made = await producer.add(flow);
    await producer.close();
    return made.job.id;
  },
  work: async (given) => {
    const worker = new Worker(given.queue, run(given.queue, given), { connection, ...(given.opts || {}) });
    worker.on("completed", (job, value) => say({ event: "completed", queue: given.queue, id: job.id, value }));
    worker.on("failed", (job, error) =>
      say({ event: "failed", queue: given.queue, id: job && job.id, reason: error.message }));
    worker.on("stalled", (id) => say({ event: "stalled", queue: given.queue, id }));
    worker.on("error", (error) => say({ event: "error", text: String(error) }));
    workers.set(given.queue, worker);
    await worker.waitUntilReady();
  },
  rest: async ({ queue }) => {
    await workers.get(queue).close();
    workers.delete(queue);
  },
  counts: ({ queue }) => queueOf(queue).getJobCounts(),
  jobs: async ({ queue, state }) => (await queueOf(queue).getJobs([state])).map((job) => job && job.toJSON()),
  job: async ({ queue, id }) => {
    const job = await queueOf(queue).getJob(id);
    return job ? { ...job.toJSON(), state: await job.getState() } : null;
  },
  retry: async ({ queue, id }) => (await queueOf(queue).getJob(id)).retry(),
  promote: async ({ queue, id }) => (await queueOf(queue).getJob(id)).promote(),
  remove: async ({ queue, id }) => (await queueOf(queue).getJob(id)).remove(),
  update: async ({ queue, id, data }) => (await queueOf(queue).getJob(id)).updateData(data),
  changePriority: async ({ queue, id, priority }) => (await queueOf(queue).getJob(id)).changePriority({ priority }),
  pause: ({ queue }) => queueOf(queue).pause(),
  resume: ({ queue }) => queueOf(queue).resume(),
  drain: ({ queue }) => queueOf(queue).drain(),
  obliterate: ({ queue }) => queueOf(queue).obliterate({ force: true }),
  rateLimit: ({ queue, max, duration }) => queueOf(queue).setGlobalRateLimit(max, duration),
  concurrency: ({ queue, value }) => queueOf(queue).setGlobalConcurrency(value),
  listen: async ({ queue }) => {
    const events = new QueueEvents(queue, { connection });
    for (const name of ["added", "waiting", "active", "completed", "failed", "delayed", "stalled", "retries-exhausted"])
      events.on(name, (told) => say({ event: `queue:${name}`, queue, id: told.jobId, ...told }));
    listeners.push(events);
    await events.waitUntilReady();
  },
};

let rest = "";
process.stdin.on("data", (chunk) => {
  const lines = (rest + chunk).split("\n");
  rest = lines.pop();
  for (const line of lines) {
    const given = JSON.parse(line);
    Promise.resolve()
      .then(() => commands[given.do](given))
      .then((value) => say({ call: given.call, value: value === undefined ? null : value }))
      .catch((error) => say({ call: given.call, error: String(error && error.message ? error.message : error) }));
  }
});
process.stdin.on("end", () => process.exit(0));
say({ event: "ready", version: require("bullmq/package.json").version });
