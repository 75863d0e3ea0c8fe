// The border around a page: an error in its code shows a notice in the place of the page.
import { Component, type ReactNode } from "react";
import { ErrorNotice } from "./ErrorNotice";

export class Crash extends Component<{ children: ReactNode }, { error: unknown }> {
  override state: { error: unknown } = { error: null };

  static getDerivedStateFromError(error: unknown) {
    return { error };
  }

  override render() {
    if (this.state.error === null) return this.props.children;
    return (
      <div className="page">
        <h1>This page failed</h1>
        <ErrorNotice error={this.state.error} onRetry={() => this.setState({ error: null })} />
        <p>
          A part of the page may be missing after the service was updated. <a href="./">Load the page anew.</a>
        </p>
      </div>
    );
  }
}
