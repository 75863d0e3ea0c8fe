// The calls of the AI SDK through @ai-sdk/openai-compatible.

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateObject, generateText, jsonSchema, Output, streamText, tool } from "ai";
import { z } from "zod";
import { assert, baseURL, model, refused, story, versions, works } from "./told.mjs";

const settings = { name: "steerserve", baseURL, includeUsage: true, supportsStructuredOutputs: true };
const provider = createOpenAICompatible(settings);
const ask = { model: provider.chatModel(model), prompt: story, maxRetries: 0 };
const schema = jsonSchema({
  type: "object",
  properties: { sky: { enum: ["blue", "grey"] }, isCalm: { type: "boolean" } },
  required: ["sky", "isCalm"],
  additionalProperties: false,
});

versions("ai", "@ai-sdk/openai-compatible");

await works("`generateText`", async () => {
  const answer = await generateText({ ...ask, maxOutputTokens: 5 });
  assert.ok(answer.text);
  assert.equal(answer.usage.outputTokens, 5);
});

await works("`streamText`", async () => {
  const answer = streamText({ ...ask, maxOutputTokens: 5 });
  let text = "";
  for await (const piece of answer.textStream) text += piece;
  assert.ok(text);
  assert.equal((await answer.usage).outputTokens, 5);
  assert.equal(await answer.finishReason, "length");
});

await works("`generateObject` and `Output.object` with `jsonSchema`", async () => {
  const { object } = await generateObject({ ...ask, schema });
  assert.ok(["blue", "grey"].includes(object.sky));
  const { output } = await generateText({ ...ask, output: Output.object({ schema }) });
  assert.ok(["blue", "grey"].includes(output.sky));
});

await works("`completionModel`", async () => {
  const text = { model: provider.completionModel(model), prompt: "One day", maxOutputTokens: 5 };
  assert.ok((await generateText(text)).text);
});

await works("`embedMany`", async () => {
  const values = ["The sea", "A path"];
  const { embeddings } = await embedMany({ model: provider.textEmbeddingModel(model), values });
  assert.ok(embeddings[1].length > 1);
});

await refused(
  "a zod schema: its JSON schema names its dialect",
  { says: "$schema", instead: "`jsonSchema` with the same schema and without `$schema`" },
  () => generateObject({ ...ask, schema: z.object({ isCalm: z.boolean() }) }),
);

await refused(
  "`Output.choice`: its JSON schema names its dialect",
  { says: "$schema", instead: "`jsonSchema` with an `enum`" },
  () => generateText({ ...ask, output: Output.choice({ options: ["blue", "grey"] }) }),
);

await refused(
  "`streamText` with `Output.object`",
  { says: "cannot be streamed", instead: "`generateText` or `generateObject`" },
  async () => {
    let problem;
    const note = ({ error }) => (problem = error);
    await streamText({ ...ask, output: Output.object({ schema }), onError: note }).consumeStream();
    if (problem) throw problem;
  },
);

await refused(
  "tools",
  { says: "tools, tool_choice: not honoured", instead: "`generateObject`" },
  () => generateText({ ...ask, tools: { look: tool({ inputSchema: schema }) } }),
);
