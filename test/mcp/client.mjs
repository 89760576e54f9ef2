// A client of sbxrun mcp by one of the protocol's own TypeScript packages. It does
// what an agent does and prints what came of each step, one JSON object a line:
//
//   node client.mjs LIBRARY WORKSPACE stdio COMMAND ARG...
//   node client.mjs LIBRARY WORKSPACE http URL TOKEN
//
// LIBRARY is sdk (the first generation), or client (the second) with how it agrees
// on a version of the protocol: client-legacy, client-auto, client-2026-07-28. That
// the server's results agree with its schemas is checked by the library, which
// throws where they do not.
import { createRequire } from 'node:module';
import fs from 'node:fs';
import path from 'node:path';

const modules = createRequire(process.env.CLIENTS + '/package.json');
const load = (name) => import(modules.resolve(name));

const [library, workspace, kind, target, ...rest] = process.argv.slice(2);
const old = library === 'sdk';
const { Client } = await load(old ? '@modelcontextprotocol/sdk/client/index.js' : '@modelcontextprotocol/client');
const { StdioClientTransport } = await load(old ? '@modelcontextprotocol/sdk/client/stdio.js' : '@modelcontextprotocol/client/stdio');
const { StreamableHTTPClientTransport } = await load(old ? '@modelcontextprotocol/sdk/client/streamableHttp.js' : '@modelcontextprotocol/client');

const transport = kind === 'stdio'
  ? new StdioClientTransport({ command: target, args: rest, env: process.env, stderr: 'inherit' })
  : new StreamableHTTPClientTransport(new URL(target), { requestInit: { headers: { Authorization: 'Bearer ' + rest[0] } } });
const wanted = library.replace('client-', '');
const mode = wanted === 'auto' || wanted === 'legacy' ? wanted : { pin: wanted };
const client = new Client({ name: 'sbxrun-test', version: '1' }, old ? {} : { versionNegotiation: { mode } });
await client.connect(transport);

const say = (step, value) => fs.writeSync(1, JSON.stringify({ step, value }) + '\n');
const call = (name, args, options) => old
  ? client.callTool({ name, arguments: args }, undefined, { timeout: 120_000, ...options })
  : client.callTool({ name, arguments: args }, { timeout: 120_000, ...options });
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
async function until(what, holds) {
  for (let i = 0; i < 1200; i++) {
    if (await holds()) return;
    await sleep(50);
  }
  throw new Error('it did not come to this in a minute: ' + what);
}

say('version', old ? transport.protocolVersion ?? '' : client.getNegotiatedProtocolVersion());
const { tools } = await client.listTools();
say('list', tools.map((t) => ({ name: t.name, output: !!t.outputSchema, annotations: !!t.annotations, closed: t.inputSchema.additionalProperties === false })));

say('call', (await call('bash', { command: 'echo out; echo err >&2; cd /usr; exit 3' })).structuredContent);
say('again', (await call('bash', { command: 'pwd; cd -' })).structuredContent);
say('refused', await call('execute_command', { command: 'ls | sudo tee x' }));
say('unknown', await call('bash', { command: 'true', profile: 'unrestricted' }).catch((e) => ({ isError: true, thrown: String(e) })));

// The command ends when the client was told that it runs.
let heard = 0;
const running = call('bash', { command: `until [ -e ${workspace}/go ]; do sleep 0.05; done; echo went` },
  { onprogress: () => { heard++; fs.writeFileSync(path.join(workspace, 'go'), ''); } });
const went = (await running).structuredContent;
say('progress', { heard, stdout: went.stdout });

// What a call started is gone with it.
const degraded = (await call('session_list', {})).structuredContent.sessions[0].degraded;
const cgroups = !degraded.some((l) => l.startsWith('cgroup'));
const beat = path.join(workspace, 'beat');
const heart = cgroups
  ? `setsid bash -c 'trap "" TERM HUP INT; while :; do date +%N > ${beat}; sleep 0.02; done' & wait`
  : `bash -c 'while :; do date +%N > ${beat}; sleep 0.02; done' & wait`;
const read = () => { try { return fs.readFileSync(beat, 'utf8'); } catch { return ''; } };
const beats = async () => { const before = read(); await sleep(400); const now = read(); return before !== '' && now !== '' && before !== now; };
const abort = new AbortController();
const cancelled = call('bash', { command: heart }, { signal: abort.signal }).then(() => 'returned', () => 'aborted');
await until('the command runs', beats);
abort.abort('enough');
const how = await cancelled;
await until('the cancelled command has ended', async () => !(await beats()));
say('cancel', { how });
fs.rmSync(beat, { force: true });

const { structuredContent: started } = await call('bash', { command: `echo first; ${heart}`, run_in_background: true });
const output = (await call('bash_output', { id: started.id, wait: 20_000 })).structuredContent;
await until('the background command runs', beats);
say('background', { id: started.id, running: output.running, stdout: output.stdout });

// The end of the connection is the end of what is left.
if (kind === 'http') await transport.terminateSession();
await client.close();
await until('what the connection left has ended', async () => !(await beats()));
say('end', true);
