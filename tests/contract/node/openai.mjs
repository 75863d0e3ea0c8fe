// The calls of the official JavaScript client.

import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { assert, baseURL, model, refused, story, versions, works } from "./told.mjs";

const client = new OpenAI({ baseURL, apiKey: "any", maxRetries: 0 });
const messages = [{ role: "user", content: story }];
const chats = client.chat.completions;
const weather = z.object({ sky: z.enum(["blue", "grey"]), isCalm: z.boolean() });

versions("openai");

await works("chat", async () => {
  const answer = await chats.create({ model, messages, max_tokens: 5 });
  assert.ok(answer.choices[0].message.content);
});

await works("chat stream", async () => {
  const options = { stream: true, stream_options: { include_usage: true } };
  let usage;
  for await (const chunk of await chats.create({ model, messages, max_tokens: 5, ...options }))
    usage = chunk.usage ?? usage;
  assert.equal(usage.completion_tokens, 5);
});

await works("`chat.completions.stream` helper", async () => {
  const answer = await chats.stream({ model, messages, max_tokens: 5 }).finalChatCompletion();
  assert.ok(answer.choices[0].message.content);
});

await works("`chat.completions.parse` with a JSON schema without `$schema`", async () => {
  const format = zodResponseFormat(weather, "weather");
  delete format.json_schema.schema.$schema;
  const answer = await chats.parse({ model, messages, response_format: format });
  assert.ok(["blue", "grey"].includes(answer.choices[0].message.parsed.sky));
});

await works("`completions.create`", async () => {
  const answer = await client.completions.create({ model, prompt: "One day", max_tokens: 5 });
  assert.ok(answer.choices[0].text);
});

await works("`embeddings.create` (base64 by default)", async () => {
  const answer = await client.embeddings.create({ model, input: ["The sea", "A path"] });
  assert.ok(answer.data[1].embedding.length > 1);
});

await works("`models.list`", async () => {
  const listed = [];
  for await (const entry of client.models.list()) listed.push(entry.id);
  assert.ok(listed.includes(model));
});

await refused(
  "`zodResponseFormat` as it is: its schema names its dialect",
  { says: "$schema", instead: "`delete format.json_schema.schema.$schema`" },
  () => chats.parse({ model, messages, response_format: zodResponseFormat(weather, "weather") }),
);

await refused(
  "tools",
  { says: "tools: not honoured", instead: "`response_format` with a schema" },
  () =>
    chats.create({
      model,
      messages,
      tools: [{ type: "function", function: { name: "look", parameters: {} } }],
    }),
);
