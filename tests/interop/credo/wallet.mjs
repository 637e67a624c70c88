// A Credo agent as a wallet: takes commands as JSON lines, answers each, and says what it receives.
//
//   node wallet.mjs VERSION HOME NAME KEY STRATEGY
//
// {"id": 1, "do": "send", "with": [connection, text]} is answered by {"id": 1, "result": …} or
// {"id": 1, "error": "…"}; {"received": text} is said of every message. Standard output is for these
// lines alone: what the agent logs goes to standard error.

import { createInterface } from 'node:readline'
import { inspect } from 'node:util'

const [version, home, name, key, strategy] = process.argv.slice(2)
for (const level of ['log', 'info', 'debug', 'warn']) console[level] = console.error
process.on('unhandledRejection', (error) => console.error('unhandled:', error))

const { newAgent } = await import(`./${version}/agent.mjs`)
const { agent, didcomm, receivedEvent, acceptAs } = newAgent({ home, name, key, strategy })
const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`)

agent.events.on(receivedEvent, ({ payload }) => {
  const { role, content } = payload.basicMessageRecord
  if (role === 'receiver') say({ received: content })
})

async function accept(url) {
  const options = { ...acceptAs, autoAcceptConnection: true, autoAcceptInvitation: true }
  const { connectionRecord } = await didcomm.oob.receiveInvitationFromUrl(url, options)
  await didcomm.connections.returnWhenIsConnected(connectionRecord.id)
  return connectionRecord.id
}

async function answerAbout(service, ask) {
  const mediator = await didcomm.mediationRecipient.findDefaultMediatorConnection()
  const answer = new Promise((resolve) => {
    agent.events.on('AgentMessageProcessed', ({ payload: { message } }) => {
      if (message.type.includes(`/push-notifications-${service}/`)) resolve(message.toJSON())
    })
  })
  await ask(agent.modules[service], mediator.id)
  return answer
}

const commands = {
  start: () => agent.initialize().then(() => null),

  // Connects to a mediator, asks for mediation, and picks up messages from now on.
  async enrol(url) {
    const connection = await didcomm.connections.getById(await accept(url))
    await didcomm.mediationRecipient.provision(connection)
    await didcomm.mediationRecipient.initiateMessagePickup()
    return null
  },

  // An invitation for one contact, by one handshake: [its id here, its URL].
  async invite(handshake) {
    const record = await didcomm.oob.createInvitation({
      handshakeProtocols: [handshake],
      autoAcceptConnection: true,
    })
    return [record.id, record.outOfBandInvitation.toUrl({ domain: 'http://wallet.test' })]
  },

  // The connection that an invitation led to, once it is made.
  async connected(invitation) {
    const [connection] = await didcomm.connections.findAllByOutOfBandId(invitation)
    if (!connection) return null
    await didcomm.connections.returnWhenIsConnected(connection.id)
    return connection.id
  },

  accept,

  send: (connection, text) => didcomm.basicMessages.sendMessage(connection, text).then(() => null),

  // Asks its mediator for a protocol: the protocols that it discloses.
  async disclosed(protocol) {
    const { features } = await didcomm.discovery.queryFeatures({
      connectionId: (await didcomm.mediationRecipient.findDefaultMediatorConnection()).id,
      protocolVersion: 'v1',
      queries: [{ featureType: 'protocol', match: protocol }],
      awaitDisclosures: true,
    })
    return features.map(({ id }) => id)
  },

  // Names this wallet's device at a push service to its mediator: the answer.
  setDevice: (service, deviceToken, devicePlatform) =>
    answerAbout(service, (api, mediator) =>
      api.setDeviceInfo(mediator, { deviceToken, devicePlatform }),
    ),

  // Asks its mediator for this wallet's device at a push service: the answer.
  device: (service) => answerAbout(service, (api, mediator) => api.getDeviceInfo(mediator)),

  stop: () => agent.shutdown().then(() => null),
}

for await (const line of createInterface({ input: process.stdin })) {
  const { id, do: command, with: values } = JSON.parse(line)
  commands[command](...values).then(
    (result) => say({ id, result }),
    (error) => say({ id, error: inspect(error) }),
  )
}
process.exit(0)
