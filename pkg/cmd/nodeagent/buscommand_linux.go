/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package nodeagent

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/agent/local/kubeletbus"
	"haulout.dev/haulout/pkg/agent/systemd"
)

// systemBus is the socket of the system bus, where D-Bus says that it is.
const systemBus = "/run/dbus/system_bus_socket"

// newKubeletBusCommand returns the command that is the bus of the kubelet.
func newKubeletBusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "kubelet-bus",
		Short: "Be the kubelet's D-Bus, for localEngine KubeletBus",
		Long: `Be the D-Bus of the kubelet, until SIGTERM: all calls reach the system bus, except
for those of logind, in whose place the agent tells the kubelet when to end its
pods. The service that 'install' creates for localEngine KubeletBus runs this.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, os.Interrupt)
			defer stop()
			bus, err := kubeletbus.New(kubeletbus.Config{Dir: kubeletbus.DefaultDir, System: systemBus})
			if err != nil {
				return err
			}
			err = bus.Run(ctx, func() {
				if err := systemd.NewNotifier().Ready("serves the kubelet"); err != nil {
					klog.FromContext(ctx).Error(err, "Cannot tell systemd the status")
				}
			})
			if err != nil {
				return fmt.Errorf("serve the kubelet: %w", err)
			}
			return nil
		},
	}
}
