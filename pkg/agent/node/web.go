package node

import (
	"net/http"

	"github.com/gpu-dra/driver/pkg/kubeletplugin"
	"github.com/gpu-dra/driver/pkg/probes"
	"github.com/gpu-dra/driver/pkg/tenancy"
)

// Web is what the HTTP port answers.
func (n *Node) Web(checks probes.Checks) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", probes.Handler(n.Metrics.Registry(), checks))
	mux.Handle(tenancy.Path, n.care.Tenants.Handler(n.Config.DriverName, n.Config.NodeName))
	return mux
}

// Health is what tells the kubelet how well devices are.
func (n *Node) Health() kubeletplugin.HealthSource { return n.care }
