// Package loopback gives servers of tests addresses of their own. It is for tests that tell a
// server where to listen before it runs. It knows no server.
package loopback

import (
	"crypto/rand"
	"net"
	"net/netip"
	"strconv"
)

// Host gives an address of this machine that nobody else uses: all of 127.0.0.0/8 is its own, and
// a port that was looked for in advance may be taken by the time it is needed.
func Host() string {
	var a [4]byte
	_, _ = rand.Read(a[1:]) // never fails
	// Not 127.0.x.y, where other programs listen, nor the network's first and last address.
	a[0], a[1], a[3] = 127, max(a[1], 1), min(max(a[3], 1), 254)
	return netip.AddrFrom4(a).String()
}

// Address is a new host with a port.
func Address(port int) string { return net.JoinHostPort(Host(), strconv.Itoa(port)) }
