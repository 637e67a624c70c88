// SICPA's Rust library by way of WebAssembly, as an agent: one question on its input, one answer.

import { createRequire } from 'node:module'
import { text } from 'node:stream/consumers'

const { Message } = createRequire(import.meta.url)('didcomm-node')
const question = JSON.parse(await text(process.stdin))

const resolver = {
  resolve: async (did) => question.documents.find((document) => document.id === did) ?? null,
}
const secrets = Object.entries(question.secrets).map(([id, privateKeyJwk]) => ({
  id,
  type: 'JsonWebKey2020',
  privateKeyJwk,
}))
const vault = {
  get_secret: async (id) => secrets.find((secret) => secret.id === id) ?? null,
  find_secrets: async (ids) => ids.filter((id) => secrets.some((secret) => secret.id === id)),
}

async function pack({ message, to, from, hide }) {
  const whole = new Message({ typ: 'application/didcomm-plain+json', ...message })
  const options = { forward: false, protect_sender: hide }
  const [packed] = await whole.pack_encrypted(to, from, null, resolver, vault, options)
  return { packed: JSON.parse(packed) }
}

async function unpack({ packed }) {
  const [message, found] = await Message.unpack(JSON.stringify(packed), resolver, vault, {})
  return {
    message: message.as_value(),
    authenticated: found.authenticated,
    sender_kid: found.encrypted_from_kid ?? null,
  }
}

async function forward({ packed }) {
  const [message] = await Message.unpack(JSON.stringify(packed), resolver, vault, {})
  const parsed = message.try_parse_forward()
  return { next: parsed.next, message: parsed.forwarded_msg }
}

const answer = await { pack, unpack, forward }[question.do](question)
process.stdout.write(JSON.stringify(answer))
