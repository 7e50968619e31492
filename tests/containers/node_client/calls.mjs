// Calls every station from the .proto files alone: node calls.mjs PROTOS TOKENIZER ENGINE DETOKENIZER REQUEST_ID.
// Each with metadata, and with a deadline that passes, and cancelled; prints {"service.what": answer or status}.
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";

const [protos, ...rest] = process.argv.slice(2);
const [addresses, requestId] = [rest.slice(0, 3), rest[3]];
const names = ["Tokenizer", "Engine", "Detokenizer"];
const files = names.map((name) => `postroad/v1/${name.toLowerCase()}.proto`);
const options = { includeDirs: [protos], keepCase: true, enums: String, defaults: true, oneofs: true };
const { postroad } = grpc.loadPackageDefinition(loader.loadSync(files, options));
const clients = names.map((name, i) => new postroad.v1[name](addresses[i], grpc.credentials.createInsecure()));
const [tokenizer, engine, detokenizer] = clients;

const found = {};
const metadataOf = (what) => {
  const metadata = new grpc.Metadata();
  metadata.set("x-request-id", `${requestId}-${what}`);
  return metadata;
};

// A unary call; cancelled after `cancelAfter` milliseconds, if any.
const unary = (client, method, request, what, seconds, cancelAfter = 0) =>
  new Promise((resolve) => {
    const deadline = { deadline: Date.now() + 1000 * seconds };
    const call = client[method](request, metadataOf(what), deadline, (error, answer) => {
      found[what] = error ? grpc.status[error.code] : "OK";
      resolve(answer);
    });
    if (cancelAfter) setTimeout(() => call.cancel(), cancelAfter);
  });

// A streamed one; `cancel` when the first message has come.
const streamed = async (client, request, what, seconds, cancel = false) => {
  const call = client.Generate(request, metadataOf(what), { deadline: Date.now() + 1000 * seconds });
  try {
    for await (const _ of call) if (cancel) call.cancel();
    found[what] = "OK";
  } catch (error) {
    found[what] = grpc.status[error.code];
  }
};

const chat = { messages_json: JSON.stringify([{ role: "user", content: "hi" }]) };
const long = { texts: Array(200).fill("word ".repeat(4000)) }; // takes longer than it is given
const prompt = await unary(tokenizer, "RenderChat", chat, "tokenizer.call", 10);
await unary(tokenizer, "Encode", long, "tokenizer.deadline", 0.2);
await unary(tokenizer, "Encode", long, "tokenizer.cancel", 60, 200);

const brief = { prompt_ids: prompt.ids, stop: { max_tokens: 4 } };
const endless = { prompt_ids: prompt.ids, stop: { max_tokens: 4000, ignore_eos: true } };
await streamed(engine, brief, "engine.call", 60);
await streamed(engine, endless, "engine.deadline", 0.3);
await streamed(engine, endless, "engine.cancel", 60, true);
await streamed(detokenizer, { request: brief }, "detokenizer.call", 60);
await streamed(detokenizer, { request: endless }, "detokenizer.deadline", 0.3);
await streamed(detokenizer, { request: endless }, "detokenizer.cancel", 60, true);

console.log(JSON.stringify(found));
for (const client of clients) client.close();
