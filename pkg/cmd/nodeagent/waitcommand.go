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
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// newWaitCommand returns the command of the pods that install the agent. Its only use is there.
func newWaitCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "wait",
		Short: "Do nothing until SIGTERM, in the pods of the DaemonSet that installs the agent",
		Long: `Do nothing until SIGTERM. A DaemonSet needs a container that runs; the one that
installs the agent has ended by then.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, os.Interrupt)
			defer stop()
			<-ctx.Done()
			return nil
		},
	}
}
