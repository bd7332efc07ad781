// Package conflict judges whether something else on a node hands out, or cuts up, the GPUs that
// this driver hands out: a device plugin, another DRA driver for them, a MIG manager. It is for
// package guard, which acts on the verdict, and for kubectl gpu doctor. It must not know how a node
// is looked at.
package conflict
