// The Identus SDK as a wallet of a mediator: one question on its input, one answer.
//
// Its agent asks for mediation, registers two DIDs, writes from one to the other through the mediator
// and fetches until the message has come: all of that is the SDK's own, as a wallet uses it.

import { text } from 'node:stream/consumers'
import SDK from '@hyperledger/identus-sdk'
import { BasicMessage } from '@hyperledger/identus-sdk/plugins/didcomm'

const { mediator, content } = JSON.parse(await text(process.stdin))
for (const level of ['log', 'info', 'debug', 'warn']) console[level] = console.error

const rows = new Map()
const table = (name) => rows.get(name) ?? rows.set(name, []).get(name)
const matches = (row, wanted = {}) =>
  Object.entries(wanted).every(([name, value]) => {
    if (name === '$or') return value.some((each) => matches(row, each))
    if (name === '$and') return value.every((each) => matches(row, each))
    return row[name] === value
  })
const store = {
  query: async (name, query) => table(name).filter((row) => matches(row, query?.selector)),
  insert: async (name, row) => void table(name).push(row),
  update: async (name, row) =>
    void rows.set(name, table(name).map((each) => (each.uuid === row.uuid ? row : each))),
  delete: async (name, uuid) => void rows.set(name, table(name).filter((row) => row.uuid !== uuid)),
}

const apollo = new SDK.Apollo()
const agent = SDK.Agent.initialize({
  apollo,
  pluto: new SDK.Pluto(store, apollo),
  mediatorDID: mediator,
})
const received = []
const arrived = new Promise((resolve) => {
  agent.addListener(SDK.ListenerKey.MESSAGE, (messages) => {
    received.push(...messages.map(({ piuri, body }) => ({ type: piuri, body })))
    if (received.some(({ type }) => type.endsWith('/basicmessage/2.0/message'))) resolve()
  })
})

await agent.start()
const granted = agent.currentMediatorDID.toString()
const [reader, writer] = [await agent.createNewPeerDID([], true), await agent.createNewPeerDID([], true)]
await agent.sendMessage(new BasicMessage({ content }, writer, reader).makeMessage())
await arrived
await agent.stop()
process.stdout.write(JSON.stringify({ granted, received }))
process.exit(0)
