// Shows a page in a test, with its own cache of answers and its own address.
import type { ReactNode } from "react";
import { render } from "@testing-library/react";
import { QueryClientProvider } from "@tanstack/react-query";
import { MemoryRouter } from "react-router";
import { queryClient } from "../api/queries";

export function showPage(page: ReactNode, at = "/") {
  const client = queryClient();
  const shown = render(
    <QueryClientProvider client={client}>
      <MemoryRouter initialEntries={[at]}>{page}</MemoryRouter>
    </QueryClientProvider>,
  );
  return { client, ...shown };
}
