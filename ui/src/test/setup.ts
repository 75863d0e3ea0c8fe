// What jsdom lacks, and the clean-up after each test of a component.
import { cleanup, configure } from "@testing-library/react";
import { afterEach } from "vitest";
import { closeAll } from "../parts/Notices";

// a busy machine draws late
configure({ asyncUtilTimeout: 10_000 });
afterEach(() => {
  cleanup();
  // the files of tests share their modules
  closeAll();
});

HTMLDialogElement.prototype.showModal = function showModal(this: HTMLDialogElement) {
  this.open = true;
};
HTMLDialogElement.prototype.close = function close(this: HTMLDialogElement) {
  if (!this.open) return;
  this.open = false;
  this.dispatchEvent(new Event("close"));
};
Element.prototype.scrollIntoView = function scrollIntoView() {};
