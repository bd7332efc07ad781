// Package kubeletplugin joins the driver's core to the kubelet by way of the library
// k8s.io/dynamic-resource-allocation/kubeletplugin: calls become plans that are prepared,
// and the desired slices become published ones. It is for the agent that wires the node plugin.
// It must not know NVML, CDI or how a claim is prepared.
package kubeletplugin
