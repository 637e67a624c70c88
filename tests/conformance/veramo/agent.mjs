// Veramo as an agent: one question on its input, one answer.

import { text } from 'node:stream/consumers'
import { createAgent } from '@veramo/core'
import { DIDComm } from '@veramo/did-comm'
import { AbstractIdentifierProvider, DIDManager, MemoryDIDStore } from '@veramo/did-manager'
import { DIDResolverPlugin } from '@veramo/did-resolver'
import { KeyManager, MemoryKeyStore, MemoryPrivateKeyStore } from '@veramo/key-manager'
import { KeyManagementSystem } from '@veramo/kms-local'

const question = JSON.parse(await text(process.stdin))
const hex = (text) => Buffer.from(text, 'base64url').toString('hex')

// The DIDs are imported, never made.
class Imported extends AbstractIdentifierProvider {}

async function resolve(did) {
  const didDocument = question.documents.find((document) => document.id === did.split('#')[0]) ?? null
  const didResolutionMetadata = didDocument ? {} : { error: 'notFound' }
  return { didDocument, didDocumentMetadata: {}, didResolutionMetadata }
}

const agent = createAgent({
  plugins: [
    new KeyManager({
      store: new MemoryKeyStore(),
      kms: { local: new KeyManagementSystem(new MemoryPrivateKeyStore()) },
    }),
    new DIDManager({
      providers: { imported: new Imported() },
      store: new MemoryDIDStore(),
      defaultProvider: 'imported',
    }),
    new DIDResolverPlugin({ resolver: { resolve } }),
    new DIDComm({ transports: [] }),
  ],
})

const [did] = Object.keys(question.secrets)[0].split('#')
await agent.didManagerImport({
  did,
  provider: 'imported',
  services: [],
  keys: Object.entries(question.secrets).map(([kid, { crv, x, d }]) => ({
    kid,
    kms: 'local',
    type: crv,
    publicKeyHex: hex(x),
    // Of a signing key the library keeps both halves.
    privateKeyHex: crv === 'Ed25519' ? hex(d) + hex(x) : hex(d),
  })),
})

async function pack({ message, from }) {
  const packing = from ? 'authcrypt' : 'anoncrypt'
  const found = await agent.packDIDCommMessage({ packing, message })
  return { packed: JSON.parse(found.message) }
}

async function unpack({ packed }) {
  const found = await agent.unpackDIDCommMessage({ message: JSON.stringify(packed) })
  const { skid } = JSON.parse(Buffer.from(packed.protected, 'base64url').toString())
  return {
    message: found.message,
    authenticated: found.metaData.packing === 'authcrypt',
    sender_kid: skid ?? null,
  }
}

// It has no function for this: its message handler looks at the message in the same way.
async function forward(asked) {
  const { message } = await unpack(asked)
  return { next: message.body.next, message: message.attachments[0].data.json }
}

process.stdout.write(JSON.stringify(await { pack, unpack, forward }[question.do](question)))
