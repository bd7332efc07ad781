// Package claimstatus keeps the condition Ready of the devices of this node's claims up to date, in
// status.devices of the ResourceClaim: written after a device was prepared and whenever it falls
// ill or gets well, taken away when it was unprepared. It is for the agent, which runs it in the
// one instance that publishes. It must not know how faults are found, and nothing waits for it: a
// cluster that does not allow it, or drops it, costs the condition alone.
//
// Entries are written by server-side apply, so that those of other drivers and what other programs
// add stay theirs, also where this client does not know a field.
package claimstatus
