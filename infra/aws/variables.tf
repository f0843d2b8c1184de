variable "name" {
  description = "Name of the cell: the first part of the name of everything that is made"
  type        = string
  default     = "logplane"
  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,19}$", var.name))
    error_message = "It must have 1 to 20 lower-case letters, digits and dashes, and begin with a letter."
  }
}

variable "region" {
  description = "AWS region of everything but CloudFront's certificate"
  type        = string
}

variable "zones" {
  description = "Three availability zones of the region; the servers of the log are in the first ones"
  type        = list(string)
  validation {
    condition     = length(var.zones) == 3 && length(distinct(var.zones)) == 3
    error_message = "There must be three different zones."
  }
}

variable "network" {
  description = "Address range of the VPC, a /16"
  type        = string
  default     = "10.73.0.0/16"
}

variable "domain" {
  description = "Name under which clients reach the API, for example 'cell.example.com'"
  type        = string
}

variable "zone_id" {
  description = "Id of the public Route 53 zone in which the domain is"
  type        = string
}

variable "architecture" {
  description = "Processor of functions and machines, 'arm64' or 'x86_64'"
  type        = string
  default     = "arm64"
  validation {
    condition     = contains(["arm64", "x86_64"], var.architecture)
    error_message = "It must be 'arm64' or 'x86_64'."
  }
}

variable "artifacts" {
  description = "Name of the bucket that has the programs, which you made and filled: see README.md"
  type        = string
}

variable "release" {
  description = "Folder in the bucket of artifacts, with bootstrap.zip, logplane and nats-server for the architecture"
  type        = string
}

variable "secret" {
  description = "Name of the secret in Secrets Manager that files.sh made: the files of the cell and the passwords of the log"
  type        = string
  default     = "logplane/files"
}

variable "files_version" {
  description = "Version of the secret, which files.sh printed: another one begins functions and watchers that read the secret again"
  type        = string
}

variable "prefix" {
  description = "The cell's folder in its bucket"
  type        = string
  default     = "cell"
}

variable "invoke_mode" {
  description = "InvokeMode of the function URL, 'RESPONSE_STREAM' or 'BUFFERED'"
  type        = string
  default     = "RESPONSE_STREAM"
  validation {
    condition     = contains(["RESPONSE_STREAM", "BUFFERED"], var.invoke_mode)
    error_message = "It must be 'RESPONSE_STREAM' or 'BUFFERED'."
  }
}

variable "function_memory" {
  description = "Memory of the function 'api' in MiB: its caches live in it, and its share of a processor follows it"
  type        = number
  default     = 1024
}

variable "log_servers" {
  description = "How many servers the log has: 3, or 1, with which the cell pauses and with whose disk the last second is lost"
  type        = number
  default     = 3
  validation {
    condition     = contains([1, 3], var.log_servers)
    error_message = "It must be 1 or 3."
  }
}

variable "log_machine" {
  description = "Type of the EC2 machines of the log, of the architecture"
  type        = string
  default     = "t4g.small"
}

variable "log_gib" {
  description = "Size of each disk of the log, in GiB"
  type        = number
  default     = 20
}

variable "watcher_machine" {
  description = "Type of the EC2 machines that serve watches, of the architecture"
  type        = string
  default     = "t4g.small"
}

variable "watchers" {
  description = "How many machines serve watches and project: two survive the loss of a zone without a pause"
  type        = number
  default     = 2
}

variable "kept_days" {
  description = "Days for which the bucket keeps what was deleted, for a restore"
  type        = number
  default     = 7
}

variable "alarm_email" {
  description = "Address to which alarms and the budget are sent"
  type        = string
}

variable "budget" {
  description = "What the account may cost in a month, in US dollars, before you are told"
  type        = number
}

variable "history" {
  description = "How long every version of every object is kept, such as '720h'; without it, a week"
  type        = string
  default     = null
}

variable "authentication_config" {
  description = "Name of the secret's file with an AuthenticationConfiguration, which names OpenID issuers; they need 'internet'"
  type        = string
  default     = null
}

variable "audit_policy" {
  description = "Name of the secret's file with an audit policy: the records are in the logs of functions and machines"
  type        = string
  default     = null
}

variable "flags" {
  description = "More flags of Logplane, by command or for 'all', as in { all = { retention = \"2h\" }, api = { goaway-chance = \"0.01\" } }"
  type        = map(map(string))
  default     = {}
  validation {
    condition     = length(setsubtract(keys(var.flags), ["all", "api", "projector", "lifecycle", "expiry", "watcher", "init"])) == 0
    error_message = "Its keys must be 'all', 'api', 'projector', 'lifecycle', 'expiry', 'watcher' or 'init'."
  }
}

variable "api_concurrency" {
  description = "How many requests the function 'api' serves at once, which bounds its cost: -1 for as many as the account has, 0 stops it"
  type        = number
  default     = -1
}

variable "web_acl" {
  description = "ARN of a web ACL of AWS WAF in us-east-1 before CloudFront, or 'managed' for one that bounds the rate of an address"
  type        = string
  default     = null
}

variable "internet" {
  description = "Whether processes reach the internet, through a NAT gateway: outer issuers and webhooks need it"
  type        = bool
  default     = false
}
