import { describe, expect, it } from "vitest";
import { fieldText, fileName, indented } from "./document";

describe("fieldText", () => {
  it("gives the document of an export as it stands there", () => {
    const document = '{"strength": 1.0, "deep": [{"data": 1180591620717411303424}], "text": "a \\"}, b"}';
    const answer = `{"success":true, "data" : ${document} ,"error":null}`;
    expect(fieldText(answer, "data")).toBe(document);
  });
  it("takes the field of the object itself, not of a part, and not a text that has its name", () => {
    expect(fieldText('{"a":{"data":1},"b":"data","data":[2]}', "data")).toBe("[2]");
    expect(fieldText('{"a":{"data":1}}', "data")).toBeNull();
  });
});

describe("indented", () => {
  it("keeps what the text says", () => {
    const text = '{"a":[1.0,{"b":"x: {y}, \\" z"}],"empty":{},"none":[]}';
    expect(JSON.parse(indented(text))).toEqual(JSON.parse(text));
    expect(indented('{"a":[1.0,-2e5],"b":{}}')).toBe('{\n  "a": [\n    1.0,\n    -2e5\n  ],\n  "b": {}\n}\n');
  });
});

describe("fileName", () => {
  it("has only signs that every system takes", () => {
    expect(fileName("sea words / λ?", "cluster")).toBe("sea-words-λ.cluster.json");
    expect(fileName("..", "profile")).toBe("profile.profile.json");
  });
});
