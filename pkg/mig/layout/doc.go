// Package layout knows declared MIG layouts: it reads the configuration format of NVIDIA's
// mig-parted, finds the layout of each GPU, works out what has to be made and removed for it, and
// compares a node with it. It is for the applier, for the offer (a GPU with a layout is offered
// as it is laid out) and for the command line. It is pure: it must not know how instances are
// made, claims, files or the API server.
//
// The format (version v1) is accepted as it is:
//
//	version: v1
//	mig-configs:
//	  mixed:
//	  - devices: [0]
//	    mig-enabled: true
//	    mig-devices: {"4g.40gb": 1, "1g.10gb": 2}
//	  - devices: all
//	    device-filter: "0x20B210DE"
//	    mig-enabled: false
//
// A number in devices counts the node's GPUs in the order of their PCI addresses; lost ones
// count, so that the others keep their numbers. A filter is a PCI device id and vendor. Profiles
// are named as the GPU's driver names them.
package layout
