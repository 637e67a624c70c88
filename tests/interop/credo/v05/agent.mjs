// An agent of Credo 0.5 in the form that wallet.mjs drives.

// First: what follows copies the library that this one registers.
import { askar } from '@openwallet-foundation/askar-nodejs'
import { AskarModule } from '@credo-ts/askar'
import {
  Agent,
  BasicMessageEventTypes,
  ConnectionsModule,
  ConsoleLogger,
  HttpOutboundTransport,
  LogLevel,
  MediationRecipientModule,
  WsOutboundTransport,
} from '@credo-ts/core'
import {
  PushNotificationsApnsModule,
  PushNotificationsFcmModule,
} from '@credo-ts/push-notifications'
import { WebSocket } from 'ws'
import { POLLING_MS, RECONNECT_MS_MAX, dependencies } from '../platform.mjs'

export function newAgent({ home, name, key, strategy }) {
  const agent = new Agent({
    config: {
      label: name,
      logger: new ConsoleLogger(LogLevel.warn),
      walletConfig: { id: name, key, keyDerivationMethod: 'RAW' },
    },
    dependencies: dependencies(home, WebSocket),
    modules: {
      askar: new AskarModule({ ariesAskar: askar }),
      connections: new ConnectionsModule({ autoAcceptConnections: true }),
      mediationRecipient: new MediationRecipientModule({
        mediatorPickupStrategy: strategy,
        mediatorPollingInterval: POLLING_MS,
        maximumMediatorReconnectionIntervalMs: RECONNECT_MS_MAX,
      }),
      fcm: new PushNotificationsFcmModule(),
      apns: new PushNotificationsApnsModule(),
    },
  })
  agent.registerOutboundTransport(new HttpOutboundTransport())
  agent.registerOutboundTransport(new WsOutboundTransport())
  return {
    agent,
    didcomm: agent,
    receivedEvent: BasicMessageEventTypes.BasicMessageStateChanged,
    acceptAs: {},
  }
}
