// Hands a text or the bytes of a file to the browser as a file to save.
export function saveFile(name: string, content: string | Blob): void {
  const blob = typeof content === "string" ? new Blob([content], { type: "application/json" }) : content;
  const address = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
