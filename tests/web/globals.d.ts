// What the pages' scripts find in the browser, beside what every browser has.

interface Window {
  Plotly?: any; // the library has no types of its own, and figures arrive computed
  specvizPage?: Record<string, unknown>; // what the parts that Python mounts are started by
}

// Elements are HTML where a selector does not name another kind. A caller that knows more says it in a type.
interface ParentNode {
  querySelector<K extends keyof HTMLElementTagNameMap>(selectors: K): HTMLElementTagNameMap[K] | null;
  querySelector<K extends keyof SVGElementTagNameMap>(selectors: K): SVGElementTagNameMap[K] | null;
  querySelector<E extends Element = HTMLElement>(selectors: string): E | null;
  querySelectorAll<K extends keyof HTMLElementTagNameMap>(selectors: K): NodeListOf<HTMLElementTagNameMap[K]>;
  querySelectorAll<K extends keyof SVGElementTagNameMap>(selectors: K): NodeListOf<SVGElementTagNameMap[K]>;
  querySelectorAll<E extends Element = HTMLElement>(selectors: string): NodeListOf<E>;
}

interface DocumentEventMap {
  "sv-opened": CustomEvent<string>; // where a person goes on from the opening: "run", "why" or ""
  "sv-predicted": CustomEvent<{ right: boolean; accepted: boolean }>; // a guess of the game, and the verdict
}

interface HTMLElementEventMap {
  "sv-open": CustomEvent<import("../../assets/web/messages.d.ts").PlaceInText>; // on a report page: a cell opens a text there
}

// ---- what the tests take from node -----------------------------------------------------------------------------------
declare module "node:test" {
  export function test(name: string, work: () => void | Promise<void>): void;
  export function test(name: string, how: { skip: string | false }, work: () => void | Promise<void>): void;
  export const mock: { timers: { enable(what: { apis: string[] }): void; tick(milliseconds: number): void; reset(): void } };
}

declare module "node:assert/strict" {
  const assert: {
    equal(got: unknown, expected: unknown, why?: string): void;
    deepEqual(got: unknown, expected: unknown, why?: string): void;
    match(got: string, expected: RegExp, why?: string): void;
    doesNotMatch(got: string, unexpected: RegExp, why?: string): void;
    ok(got: unknown, why?: string): void;
  };
  export default assert;
}

declare module "node:fs" {
  export function readFileSync(path: string | URL, encoding: string): string;
}

declare module "node:zlib" {
  export function gunzipSync(packed: Buffer): Buffer;
}

interface Buffer extends Uint8Array {
  toString(encoding?: string): string;
}
declare const Buffer: { from(bytes: ArrayBuffer): Buffer; from(text: string, encoding: string): Buffer };
declare const process: { env: Record<string, string | undefined> };
declare function setImmediate(work: (value?: any) => void): void;
