// An agent of Credo 0.6 in the form that wallet.mjs drives.

// First: what follows copies the library that this one registers.
import { askar } from '@openwallet-foundation/askar-nodejs'
import { AskarModule } from '@credo-ts/askar'
import { Agent, ConsoleLogger, LogLevel } from '@credo-ts/core'
import {
  DidCommBasicMessageEventTypes,
  DidCommHttpOutboundTransport,
  DidCommModule,
  DidCommWsOutboundTransport,
} from '@credo-ts/didcomm'
import { WebSocket } from 'ws'
import { POLLING_MS, RECONNECT_MS_MAX, dependencies } from '../platform.mjs'

export function newAgent({ home, name, key, strategy }) {
  const agent = new Agent({
    config: { logger: new ConsoleLogger(LogLevel.warn), allowInsecureHttpUrls: true },
    dependencies: dependencies(home, WebSocket),
    modules: {
      askar: new AskarModule({ askar, store: { id: name, key, keyDerivationMethod: 'raw' } }),
      didcomm: new DidCommModule({
        transports: {
          outbound: [new DidCommHttpOutboundTransport(), new DidCommWsOutboundTransport()],
        },
        connections: { autoAcceptConnections: true },
        mediationRecipient: {
          mediatorPickupStrategy: strategy,
          mediatorPollingInterval: POLLING_MS,
          maximumMediatorReconnectionIntervalMs: RECONNECT_MS_MAX,
        },
      }),
    },
  })
  return {
    agent,
    didcomm: agent.modules.didcomm,
    receivedEvent: DidCommBasicMessageEventTypes.DidCommBasicMessageStateChanged,
    acceptAs: { label: name },
  }
}
