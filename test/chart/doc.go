// Package chart does with the driver's Helm chart what the helm command does (render,
// install, upgrade, uninstall, package), with Helm's own library and real releases. It is for
// the demo, the end-to-end tests and machines without a helm binary. It must not know what the
// chart holds: its tests do.
package chart
