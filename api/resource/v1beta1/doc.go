// Package v1beta1 is the opaque configuration that a ResourceClaim or a DeviceClass may carry
// for this driver: group resource.nvidia.com, version v1beta1, kinds GpuConfig and
// MigDeviceConfig, field for field as published by NVIDIA's driver. It is for the plugin, the
// admission webhook and the command line, which all decode, default and validate with the same
// pure functions. It must not know a Kubernetes client, devices or files.
package v1beta1
