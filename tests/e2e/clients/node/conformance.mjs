// The official client for Node.js: `node conformance.mjs URL URL_OF_A_ROAD_WITH_TOOL_TEXTS`; prints what it saw as JSON.
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const [url, toolUrl] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const toolClient = new OpenAI({ baseURL: `${toolUrl}/v1`, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "What is the capital of France?" }];
const chat = { model: "default", messages, temperature: 0, max_tokens: 12 };

async function errorOf(promise) {
  try {
    await promise;
  } catch (error) {
    return [error.constructor.name, error.status, error.param, error.code, Boolean(error.requestID)];
  }
}

const said = {};

const whole = await client.chat.completions.create(chat);
said.whole = whole.choices[0].message.content;
said.usage = whole.usage.total_tokens;
said.requestId = whole.id.endsWith(whole._request_id);

said.chunks = "";
const stream = await client.chat.completions.create({ ...chat, stream: true, stream_options: { include_usage: true } });
for await (const chunk of stream) {
  said.chunks += chunk.choices[0]?.delta?.content ?? "";
  said.chunksUsage = chunk.usage?.total_tokens;
}

const helper = client.chat.completions.stream({ ...chat, logprobs: true, top_logprobs: 1 });
said.helper = await helper.finalContent();
said.logprobs = (await helper.finalChatCompletion()).choices[0].logprobs.content.length;

const City = z.object({ name: z.string().max(12), kind: z.enum(["harbour", "plain"]) });
const format = zodResponseFormat(City, "city");
const parsed = await client.chat.completions.parse({ ...chat, max_tokens: 60, response_format: format });
said.parsed = parsed.choices[0].message.parsed;

const tool = {
  type: "function",
  function: {
    name: "get_weather",
    description: "The weather in a city",
    parameters: { type: "object", properties: { city: { type: "string" } } },
    parse: JSON.parse,
    function: ({ city }) => {
      (said.cities ??= []).push(city);
      return "sunny";
    },
  },
};
for (const streamed of [false, true]) {
  const question = [{ role: "user", content: "Weather in Köln and Rom?" }];
  const run = toolClient.chat.completions.runTools({ model: "default", messages: question, tools: [tool], stream: streamed });
  (said.afterTools ??= []).push(await run.finalContent());
}

const completion = await client.completions.create({ model: "default", prompt: "1, 2, 3,", max_tokens: 4, temperature: 0 });
said.text = completion.choices[0].text;

const response = { model: "default", input: messages[0].content, temperature: 0, max_output_tokens: 12 };
const answer = await client.responses.create(response);
said.response = answer.output_text;
said.responseUsage = answer.usage.total_tokens;
said.responseDeltas = "";
for await (const event of await client.responses.create({ ...response, stream: true })) {
  if (event.type === "response.output_text.delta") said.responseDeltas += event.delta;
}
said.responseHelper = (await client.responses.stream(response).finalResponse()).output_text;
const responseFormat = zodTextFormat(City, "city");
const parsedResponse = await client.responses.parse({ ...response, max_output_tokens: 60, text: { format: responseFormat } });
said.responseParsed = parsedResponse.output_parsed;

// Ask, call the functions, give their results back with all that came before, get the answer.
const { name, description, parameters } = tool.function;
const responseTools = [{ type: "function", name, description, parameters, strict: false }];
for (const streamed of [false, true]) {
  const input = [{ role: "user", content: "Weather in Köln and Rom?" }];
  for (let turn = 0; turn < 2; turn++) {
    const body = { model: "default", input, tools: responseTools };
    const { output, output_text } = streamed
      ? await toolClient.responses.stream(body).finalResponse()
      : await toolClient.responses.create(body);
    input.push(...output);
    for (const call of output.filter((item) => item.type === "function_call")) {
      (said.responseCities ??= []).push(JSON.parse(call.arguments).city);
      input.push({ type: "function_call_output", call_id: call.call_id, output: "sunny" });
    }
    if (turn === 1) (said.afterResponseTools ??= []).push(output_text);
  }
}

// The client asks for base64 and decodes it, unless it is told to ask for numbers.
const embed = { model: "default", input: ["harbour", "plain"] };
const embeddings = await client.embeddings.create(embed);
said.embeddings = embeddings.data.map(({ embedding }) => Array.from(embedding));
said.embeddingsUsage = embeddings.usage.total_tokens;
const numbers = await client.embeddings.create({ ...embed, encoding_format: "float" });
said.embeddingsAsNumbers = numbers.data.map(({ embedding }) => embedding);

said.models = [];
for await (const model of client.models.list()) said.models.push(model.id);
said.model = (await client.models.retrieve(said.models[0])).id;

said.errors = [
  await errorOf(client.chat.completions.create({ ...chat, temperature: 7 })),
  await errorOf(client.chat.completions.create({ ...chat, model: "another" })),
  await errorOf(client.chat.completions.create({ ...chat, messages: [] , stream: true })),
  await errorOf(client.responses.create({ ...response, previous_response_id: "resp_1" })),
  await errorOf(client.responses.create({ ...response, max_output_tokens: 0, stream: true })),
  await errorOf(client.embeddings.create({ ...embed, input: "" })),
];

const left = await client.chat.completions.create({ ...chat, max_tokens: 1000, stream: true });
for await (const _ of left) break;  // leaves the rest

console.log(JSON.stringify(said));
