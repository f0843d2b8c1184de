# One key for the bucket, the disks and the environments of functions.
resource "aws_kms_key" "cell" {
  description         = "Logplane cell ${var.name}"
  enable_key_rotation = true
}

resource "aws_kms_alias" "cell" {
  name          = "alias/${var.name}"
  target_key_id = aws_kms_key.cell.key_id
}

# The values of the secret are written by files.sh and never by Terraform. It reads the password of the log, which is
# part of a URL in the functions' environment.
data "aws_secretsmanager_secret" "files" {
  name = var.secret
}

data "aws_secretsmanager_secret_version" "files" {
  secret_id = data.aws_secretsmanager_secret.files.id
}

locals {
  files    = jsondecode(data.aws_secretsmanager_secret_version.files.secret_string)
  password = local.files["logplane-password"]
  log_url  = join(",", [for zone in var.zones : "tls://logplane:${urlencode(local.password)}@${local.log_names[zone]}:4222"])
}
