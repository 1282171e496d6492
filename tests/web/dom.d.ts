// dom.js for the type checker: its nodes are elements to the views, and the tests read of them what no element tells.
export function node(name?: string): any;
export function parsed(markup: string): any;
export function all(root: any, wanted: string): any[];
export function texts(root: any, wanted: string): string[];
export function later(): Promise<void>;
export function until(isSo: () => unknown, what?: string): Promise<void>;
export function fire(target: any, type: string, more?: object): Promise<void>;
export function type(target: any, value: string): Promise<void>;
