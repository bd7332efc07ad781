package loopback_test

import (
	"net"
	"testing"

	"github.com/gpu-dra/driver/test/loopback"
)

// Every address can be listened on, all at once.
func TestAddresses(t *testing.T) {
	for range 10 {
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", loopback.Address(8080))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
	}
}
