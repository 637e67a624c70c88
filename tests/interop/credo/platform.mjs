// What Credo needs of Node, for any version of it: files below one directory, events, HTTP.

import { EventEmitter } from 'node:events'
import { promises as fs } from 'node:fs'
import { dirname } from 'node:path'

export const POLLING_MS = 1000
export const RECONNECT_MS_MAX = 2000

export function dependencies(home, WebSocketClass) {
  class FileSystem {
    dataPath = `${home}/data`
    cachePath = `${home}/cache`
    tempPath = `${home}/temp`

    exists = (path) => fs.access(path).then(() => true, () => false)
    createDirectory = (path) => fs.mkdir(dirname(path), { recursive: true })
    copyFile = (from, to) => fs.copyFile(from, to)
    read = (path) => fs.readFile(path, 'utf-8')
    delete = (path) => fs.rm(path, { recursive: true, force: true })

    async write(path, data) {
      await this.createDirectory(path)
      await fs.writeFile(path, data)
    }
  }
  return { FileSystem, EventEmitterClass: EventEmitter, fetch, WebSocketClass }
}
